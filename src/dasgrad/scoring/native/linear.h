// Layers of few outputs on the data themselves, as `linear_with_squares` and `sparse_linear` in measures.cpp.

#pragma once

#include "vectors.h"

namespace {

constexpr int kTogether = 4;  // examples that share each reading of a matrix

// Rows of a matrix that are multiplied at once, as many as there are registers for.
constexpr int most_rows(int bytes) { return bytes == 64 ? 5 : 2; }

// outputs[e][o] = start[o] + sum_k f(x[e][k]) matrix[o][k], f the identity or the square, for kTogether examples and
// kRows of the outputs.
template <int kBytes, typename Real, bool kSquared, int kRows, typename In>
DASGRAD_INLINE void multiply_rows(const In* const* x, int64_t together, int64_t num_inputs, const Real* matrix,
                                  const Real* start, int64_t num_outputs, Real* outputs) {
  constexpr int kSize = Lanes<Real, kBytes>::kSize;
  const int64_t whole = num_inputs - num_inputs % kSize;
  Lanes<Real, kBytes> sums[kTogether][kRows], values[kTogether], entries;
  DASGRAD_UNROLLED
  for (int e = 0; e < kTogether; ++e) {
    DASGRAD_UNROLLED
    for (int o = 0; o < kRows; ++o) sums[e][o].clear();
  }
  for (int64_t k = 0; k < whole; k += kSize) {
    DASGRAD_UNROLLED
    for (int e = 0; e < kTogether; ++e) {
      load(values[e], x[e] + k);
      if (kSquared)
        values[e].square_into(values[e]);
      else  // rows are too short for the machine to see by itself what comes next
        bring_near(x[e] + k + kTogether * num_inputs);
    }
    DASGRAD_UNROLLED
    for (int o = 0; o < kRows; ++o) {
      entries.load(matrix + o * num_inputs + k);
      DASGRAD_UNROLLED
      for (int e = 0; e < kTogether; ++e) sums[e][o].add_product(values[e], entries);
    }
  }
  for (int64_t e = 0; e < together; ++e)
    for (int o = 0; o < kRows; ++o) {
      double total = sums[e][o].sum() + (start ? start[o] : Real(0));
      for (int64_t k = whole; k < num_inputs; ++k) {
        const Real value = widen(x[e][k]);
        total += double(kSquared ? value * value : value) * matrix[o * num_inputs + k];
      }
      outputs[e * num_outputs + o] = Real(total);
    }
}

// The same for all outputs, in groups of about the same size.
template <int kBytes, typename Real, bool kSquared, typename In>
DASGRAD_INLINE void multiply_few(const In* const* x, int64_t together, int64_t num_inputs, const Real* matrix,
                                 const Real* start, int64_t num_outputs, Real* outputs) {
  for (int64_t first = 0; first < num_outputs;) {
    constexpr int64_t kMost = most_rows(kBytes);
    const int64_t left = num_outputs - first, groups = (left + kMost - 1) / kMost;
    const int64_t rows = (left + groups - 1) / groups;
    const Real* part = matrix + first * num_inputs;
    const Real* begin = start ? start + first : nullptr;
    Real* out = outputs + first;
    switch (rows) {
      case 1: multiply_rows<kBytes, Real, kSquared, 1>(x, together, num_inputs, part, begin, num_outputs, out); break;
      case 2: multiply_rows<kBytes, Real, kSquared, 2>(x, together, num_inputs, part, begin, num_outputs, out); break;
      case 3: multiply_rows<kBytes, Real, kSquared, 3>(x, together, num_inputs, part, begin, num_outputs, out); break;
      case 4: multiply_rows<kBytes, Real, kSquared, 4>(x, together, num_inputs, part, begin, num_outputs, out); break;
      default: multiply_rows<kBytes, Real, kSquared, 5>(x, together, num_inputs, part, begin, num_outputs, out);
    }
    first += rows;
  }
}

// What a layer is made of, [num_outputs, num_inputs] each but for the bias, and what comes of it, [B, num_outputs] each.
template <typename Real>
struct Layer {
  const Real *weight, *bias, *quadratic, *cross;  // null: no bias, the output alone, no momentum
  int64_t num_inputs, num_outputs;
  Real *outputs, *squares, *crosses;
};

template <int kBytes, typename Real, typename In>
DASGRAD_INLINE void multiply_and_square(const In* x, int64_t num_examples, const Layer<Real>& layer) {
  const int64_t width = layer.num_inputs, num_outputs = layer.num_outputs;
  for (int64_t i = 0; i < num_examples; i += kTogether) {
    const int64_t together = num_examples - i < kTogether ? num_examples - i : kTogether;
    const In* rows[kTogether];
    for (int64_t e = 0; e < kTogether; ++e) rows[e] = x + (i + (e < together ? e : together - 1)) * width;
    const int64_t at = i * num_outputs;
    multiply_few<kBytes, Real, false>(rows, together, width, layer.weight, layer.bias, num_outputs, layer.outputs + at);
    const Real* nothing = nullptr;
    if (layer.quadratic)
      multiply_few<kBytes, Real, true>(rows, together, width, layer.quadratic, nothing, num_outputs, layer.squares + at);
    if (layer.cross)
      multiply_few<kBytes, Real, false>(rows, together, width, layer.cross, nothing, num_outputs, layer.crosses + at);
  }
}

#define DASGRAD_LINEAR(target, width, bytes)                                                     \
  target void linear_##width(const Bfloat16* x, int64_t number, const Layer<float>& layer) {     \
    multiply_and_square<bytes>(x, number, layer);                                                \
  }                                                                                              \
  target void linear_##width(const float* x, int64_t number, const Layer<float>& layer) {        \
    multiply_and_square<bytes>(x, number, layer);                                                \
  }                                                                                              \
  target void linear_##width(const double* x, int64_t number, const Layer<double>& layer) {      \
    multiply_and_square<bytes>(x, number, layer);                                                \
  }
DASGRAD_LINEAR(DASGRAD_WIDE, wide, 64)
DASGRAD_LINEAR(DASGRAD_HALF, half, 32)
DASGRAD_LINEAR(, narrow, 16)

template <typename In, typename Real>
void linear(const In* x, int64_t num_examples, const Layer<Real>& layer) {
  if (DASGRAD_HAS_WIDE) return linear_wide(x, num_examples, layer);
  if (DASGRAD_HAS_HALF) return linear_half(x, num_examples, layer);
  linear_narrow(x, num_examples, layer);
}

// Example e has the entries starts[e] to starts[e + 1] of columns and values.
template <typename Real>
DASGRAD_INLINE void multiply_sparse(const int64_t* starts, const int64_t* columns, const Real* values,
                                    int64_t num_examples, int64_t num_outputs, int64_t num_inputs, const Real* weight,
                                    const Real* bias, Real* outputs) {
  for (int64_t e = 0; e < num_examples; ++e)
    for (int64_t o = 0; o < num_outputs; ++o) {
      const Real* row = weight + o * num_inputs;
      double total = bias ? bias[o] : Real(0);
      for (int64_t begin = starts[e]; begin < starts[e + 1]; begin += kSpan) {
        const int64_t width = starts[e + 1] - begin < kSpan ? starts[e + 1] - begin : kSpan;
        const int64_t* at = columns + begin;
        const Real* value = values + begin;
        Real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < width; ++k) sum += value[k] * row[at[k]];
        total += sum;
      }
      outputs[e * num_outputs + o] = Real(total);
    }
}

DASGRAD_CLONES void sparse_linear32(const int64_t* starts, const int64_t* columns, const float* values,
                                    int64_t num_examples, int64_t num_outputs, int64_t num_inputs, const float* weight,
                                    const float* bias, float* outputs) {
  multiply_sparse(starts, columns, values, num_examples, num_outputs, num_inputs, weight, bias, outputs);
}

DASGRAD_CLONES void sparse_linear64(const int64_t* starts, const int64_t* columns, const double* values,
                                    int64_t num_examples, int64_t num_outputs, int64_t num_inputs,
                                    const double* weight, const double* bias, double* outputs) {
  multiply_sparse(starts, columns, values, num_examples, num_outputs, num_inputs, weight, bias, outputs);
}

}  // namespace
