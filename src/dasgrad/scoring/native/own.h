// Gradients in a metric that holds the example's own, as `own` in measures.cpp.

#pragma once

#include "vectors.h"

namespace {

template <typename Real>
struct Terms {
  const Real* floor;   // v-hat where the maximum is kept, else past itself
  const Real* past;    // what the second moment remembers
  const Real* decay;   // null: no coupled weight decay
  const Real* offset;  // null: no momentum in the numerator
  Real gain, slope, sign, eps;
};

template <typename Real>
DASGRAD_INLINE Real share_of(Real square, Real seen, Real floor, Real past, Real gain, Real eps) {
  const Real ahead = past + gain * seen * seen;
  const Real metric = std::sqrt(ahead > floor ? ahead : floor) + eps;
  return square == 0 ? Real(0) : square / metric;
}

// The gradient g = scale * values; `begin` is the entry of the parameter that values[0] belongs to.
template <typename Real>
DASGRAD_INLINE double sum_span(Real scale, const Real* values, int64_t width, const Terms<Real>& terms, int64_t begin) {
  const Real *floor = terms.floor + begin, *past = terms.past + begin;
  const Real gain = terms.gain, eps = terms.eps;
  Real sum = 0;
  if (!terms.decay && !terms.offset) {
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < width; ++k) {
      const Real g = scale * values[k];
      sum += share_of(g * g, g, floor[k], past[k], gain, eps);
    }
    return sum;
  }
  const Real slope = terms.slope, sign = terms.sign;
  const bool momentum = terms.offset != nullptr;
  const Real* offset = momentum ? terms.offset + begin : past;
  const Real* decay = terms.decay ? terms.decay + begin : past;
  const Real decayed = terms.decay ? Real(1) : Real(0);
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < width; ++k) {
    const Real g = scale * values[k], seen = sign * g + decayed * decay[k];
    const Real direction = momentum ? offset[k] + slope * seen : g;
    sum += share_of(direction * direction, seen, floor[k], past[k], gain, eps);
  }
  return sum;
}

// The same where values[k] belongs to entry begin + columns[k], less the share of a zero gradient there.
template <typename Real>
DASGRAD_INLINE double sum_gathered(Real scale, const Real* values, const int64_t* columns, int64_t width,
                                   const Terms<Real>& terms, int64_t begin) {
  const Real *floor = terms.floor + begin, *past = terms.past + begin;
  const Real gain = terms.gain, eps = terms.eps;
  Real sum = 0;
  if (!terms.decay && !terms.offset) {
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < width; ++k) {
      const int64_t at = columns[k];
      const Real g = scale * values[k];
      sum += share_of(g * g, g, floor[at], past[at], gain, eps);
    }
    return sum;
  }
  const Real slope = terms.slope, sign = terms.sign;
  const bool momentum = terms.offset != nullptr;
  const Real* offset = momentum ? terms.offset + begin : past;
  const Real* decay = terms.decay ? terms.decay + begin : past;
  const Real decayed = terms.decay ? Real(1) : Real(0);
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < width; ++k) {
    const int64_t at = columns[k];
    const Real g = scale * values[k], still = decayed * decay[at], seen = sign * g + still;
    const Real direction = momentum ? offset[at] + slope * seen : g;
    const Real resting = momentum ? offset[at] + slope * still : Real(0);
    sum += share_of(direction * direction, seen, floor[at], past[at], gain, eps) -
           share_of(resting * resting, still, floor[at], past[at], gain, eps);
  }
  return sum;
}

template <typename Real>
DASGRAD_INLINE void sum_dense(const Real* gradients, int64_t num_examples, int64_t size, const Terms<Real>& terms,
                              double* totals) {
  for (int64_t i = 0; i < num_examples; ++i) totals[i] = 0;
  for (int64_t begin = 0; begin < size; begin += kSpan) {  // a span of the arrays stays in the cache for all examples
    const int64_t width = size - begin < kSpan ? size - begin : kSpan;
    for (int64_t i = 0; i < num_examples; ++i)
      totals[i] += sum_span(Real(1), gradients + i * size + begin, width, terms, begin);
  }
}

template <typename Real>
DASGRAD_INLINE void sum_outer(const Real* left, const Real* right, int64_t num_examples, int64_t num_rows,
                              int64_t num_columns, const Terms<Real>& terms, double* totals) {
  for (int64_t i = 0; i < num_examples; ++i) totals[i] = 0;
  for (int64_t row = 0; row < num_rows; ++row)
    for (int64_t begin = 0; begin < num_columns; begin += kSpan) {
      const int64_t width = num_columns - begin < kSpan ? num_columns - begin : kSpan;
      for (int64_t i = 0; i < num_examples; ++i) {
        const Real scale = left[i * num_rows + row];
        totals[i] += sum_span(scale, right + i * num_columns + begin, width, terms, row * num_columns + begin);
      }
    }
}

// Example i has the entries starts[i] to starts[i + 1] of columns and values.
template <typename Real>
DASGRAD_INLINE void sum_sparse(const int64_t* starts, const int64_t* columns, const Real* values, const Real* left,
                               int64_t num_examples, int64_t num_rows, int64_t num_columns, const Terms<Real>& terms,
                               double* totals) {
  for (int64_t i = 0; i < num_examples; ++i) {
    totals[i] = 0;
    for (int64_t begin = starts[i]; begin < starts[i + 1]; begin += kSpan) {
      const int64_t width = starts[i + 1] - begin < kSpan ? starts[i + 1] - begin : kSpan;
      for (int64_t row = 0; row < num_rows; ++row)
        totals[i] +=
            sum_gathered(left[i * num_rows + row], values + begin, columns + begin, width, terms, row * num_columns);
    }
  }
}

DASGRAD_CLONES void dense32(const float* gradients, int64_t num_examples, int64_t size, const Terms<float>& terms,
                            double* totals) {
  sum_dense(gradients, num_examples, size, terms, totals);
}

DASGRAD_CLONES void dense64(const double* gradients, int64_t num_examples, int64_t size, const Terms<double>& terms,
                            double* totals) {
  sum_dense(gradients, num_examples, size, terms, totals);
}

DASGRAD_CLONES void outer32(const float* left, const float* right, int64_t num_examples, int64_t num_rows,
                            int64_t num_columns, const Terms<float>& terms, double* totals) {
  sum_outer(left, right, num_examples, num_rows, num_columns, terms, totals);
}

DASGRAD_CLONES void outer64(const double* left, const double* right, int64_t num_examples, int64_t num_rows,
                            int64_t num_columns, const Terms<double>& terms, double* totals) {
  sum_outer(left, right, num_examples, num_rows, num_columns, terms, totals);
}

DASGRAD_CLONES void sparse32(const int64_t* starts, const int64_t* columns, const float* values, const float* left,
                             int64_t num_examples, int64_t num_rows, int64_t num_columns, const Terms<float>& terms,
                             double* totals) {
  sum_sparse(starts, columns, values, left, num_examples, num_rows, num_columns, terms, totals);
}

DASGRAD_CLONES void sparse64(const int64_t* starts, const int64_t* columns, const double* values, const double* left,
                             int64_t num_examples, int64_t num_rows, int64_t num_columns, const Terms<double>& terms,
                             double* totals) {
  sum_sparse(starts, columns, values, left, num_examples, num_rows, num_columns, terms, totals);
}

}  // namespace
