// Squared lengths of per-example gradients in the optimizer's metric. Plain C ABI, neither Python nor torch.
//
// `own`: the metric holds the example's own gradient. For example i and entry k of a parameter, with
// seen = sign g + decay_k,
//
//     share = (offset_k + slope seen)^2 / (sqrt(max(floor_k, past_k + gain seen^2)) + eps),   0/0 := 0,
//
// or, without momentum, g^2 in the numerator. What differs between AdaGrad, RMSProp, Adam and AMSGrad is in the
// arrays. Gradients come as they are, or as outer products left right^T that are never written to memory, right dense
// or sparse. One pass, no temporaries; up to kSpan entries are summed in the type of the gradients, these sums in
// double. Where right is sparse the shares of zero gradients are taken off, as the rest of the row has them.
//
// `quadratic`: the metric is frozen and the layer is small, sum_k right_k^2 sum_o left_o^2 Q_ok, the layer's bias as a
// column more of Q. A matrix product with few columns runs far below the machine's speed, and would need right^2 in
// memory. With a sparse right, of any number of outputs, and with a term that is linear in the gradient.
//
// `polynomial`: the metric is frozen and gradients are there, sum_k Q_k g_k^2 + C_k g_k in one reading.
//
// `rows`: the same where the gradient is zero but for a few rows of the parameter, of which some may be given more than
// once, to be added first.
//
// `sums_of_products`: the same where the gradient is a sum of outer products over positions, left^T right, which is
// formed a few registers at a time and never written to memory; of a convolution without gathering its patches. For
// machines with registers enough.
//
// `linear_with_squares`: a layer of few outputs on the data themselves. Its output x W^T + bias, x^2 Q^T and, with
// momentum, x C^T, which is all that a frozen metric will need of x, in one reading of x. Here x may be in bfloat16,
// with everything else in float.
//
// `inverse_metric`: share / (scale sqrt(v) + eps), the metric's inverse, in one pass.
//
// `frozen_layer`: both of these for weight and bias of a layer in one call, from v to what they add to each example, for
// training steps so small that calls take longer than their arithmetic. It is given the caller's threads. `lengths`: from
// such sums to scores, sqrt(total) / (scale weight).
//
// `normalised_sums`: sum_t g_t (x_t - mean x_t) / sqrt(var x_t + eps), the gradient of a layer norm's weight.
//
// `attention`: softmax(scale q k^T) v of one head after the other, and its gradients. For machines with wide registers.
//
// `transpose`: matrices one after the other, each transposed, numbers of four or eight bytes.
//
// Nothing is allocated or remembered between calls, and arguments are checked by the caller.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(_WIN32)
#define DASGRAD_EXPORT extern "C" __declspec(dllexport)
#else
#define DASGRAD_EXPORT extern "C" __attribute__((visibility("default")))
#endif

// One build runs everywhere and uses the widest vectors the machine has.
#if defined(DASGRAD_CLONES)
#elif defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define DASGRAD_CLONES __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define DASGRAD_CLONES
#endif
// Vectors wider than the machine's would be kept in memory, so functions that name them are built for each width.
#if defined(__x86_64__) && defined(__GNUC__)
#define DASGRAD_WIDE __attribute__((target("avx512f")))
#define DASGRAD_HALF __attribute__((target("avx2,fma")))
#ifndef DASGRAD_WIDEST
#define DASGRAD_WIDEST 64  // bytes; less for a test of narrower machines on a wider one
#endif
#define DASGRAD_HAS_WIDE (DASGRAD_WIDEST >= 64 && __builtin_cpu_supports("avx512f"))
#define DASGRAD_HAS_HALF \
  (DASGRAD_WIDEST >= 32 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#else
#define DASGRAD_WIDE
#define DASGRAD_HALF
#define DASGRAD_HAS_WIDE 0
#define DASGRAD_HAS_HALF 0
#endif
#if defined(__GNUC__)
#define DASGRAD_INLINE inline __attribute__((always_inline))
#define DASGRAD_UNROLLED _Pragma("GCC unroll 8")  // so that arrays of vectors are registers
#else
#define DASGRAD_INLINE inline
#define DASGRAD_UNROLLED
#endif

namespace {

constexpr int64_t kSpan = 1024;

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

// `quadratic` null: 1 everywhere; `cross` null: 0.
template <typename Real>
DASGRAD_INLINE void sum_polynomial(const Real* gradients, int64_t num_examples, int64_t size, const Real* quadratic,
                                   const Real* cross, double* totals) {
  for (int64_t i = 0; i < num_examples; ++i) {
    double total = 0;
    for (int64_t begin = 0; begin < size; begin += kSpan) {
      const int64_t width = size - begin < kSpan ? size - begin : kSpan;
      const Real* g = gradients + i * size + begin;
      const Real* q = quadratic ? quadratic + begin : nullptr;
      const Real* c = cross ? cross + begin : nullptr;
      Real sum = 0;
      if (q && c) {
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < width; ++k) sum += (q[k] * g[k] + c[k]) * g[k];
      } else if (q) {
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < width; ++k) sum += q[k] * (g[k] * g[k]);
      } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < width; ++k) sum += g[k] * g[k];
      }
      total += sum;
    }
    totals[i] = total;
  }
}

// Entry e adds values[e] to row indices[e] of the gradient of example owners[e]; owners ascend.
template <typename Real>
struct Rows {
  const int64_t* owners;
  const int64_t* indices;
  const Real* values;
  const Real* quadratic;  // as above
  const Real* cross;
  int64_t* order;  // one for each entry
  Real* sums;      // a row for each example
  double* totals;
  int64_t num_entries;
  int64_t num_rows;
  int64_t width;
  int64_t first;  // examples of this call
  int64_t last;
};

// Whether all indices are rows; where one is not, totals are not to be used.
template <typename Real>
DASGRAD_INLINE bool sum_rows(const Rows<Real>& p) {
  const int64_t* end = p.owners + p.num_entries;
  int64_t next = std::lower_bound(p.owners, end, p.first) - p.owners;
  for (int64_t example = p.first; example < p.last; ++example) {
    const int64_t begin = next;
    for (; next < p.num_entries && p.owners[next] == example; ++next) {
      if (p.indices[next] < 0 || p.indices[next] >= p.num_rows) return false;
      p.order[next] = next;
    }
    const int64_t* indices = p.indices;
    std::sort(p.order + begin, p.order + next,
              [indices](int64_t a, int64_t b) { return indices[a] != indices[b] ? indices[a] < indices[b] : a < b; });
    double total = 0;
    for (int64_t k = begin; k < next;) {
      const int64_t row = indices[p.order[k]];
      const Real* gradient = p.values + p.order[k] * p.width;
      if (++k < next && indices[p.order[k]] == row) {
        Real* sums = p.sums + example * p.width;
        std::copy(gradient, gradient + p.width, sums);
        for (; k < next && indices[p.order[k]] == row; ++k) {
          const Real* more = p.values + p.order[k] * p.width;
#pragma omp simd
          for (int64_t column = 0; column < p.width; ++column) sums[column] += more[column];
        }
        gradient = sums;
      }
      double share;
      sum_polynomial(gradient, 1, p.width, p.quadratic ? p.quadratic + row * p.width : nullptr,
                     p.cross ? p.cross + row * p.width : nullptr, &share);
      total += share;
    }
    p.totals[example] = total;
  }
  return true;
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

// sum_k Q_k g_k^2 + cross_k g_k; either array may be null, for 1 and 0.
template <typename Real>
DASGRAD_INLINE void sum_sparse_quadratic(const int64_t* starts, const int64_t* columns, const Real* values,
                                         const Real* left, int64_t num_examples, int64_t num_rows, int64_t num_columns,
                                         const Real* quadratic, const Real* cross, double* totals) {
  for (int64_t i = 0; i < num_examples; ++i) {
    totals[i] = 0;
    for (int64_t begin = starts[i]; begin < starts[i + 1]; begin += kSpan) {
      const int64_t width = starts[i + 1] - begin < kSpan ? starts[i + 1] - begin : kSpan;
      const int64_t* at = columns + begin;
      const Real* value = values + begin;
      for (int64_t row = 0; row < num_rows; ++row) {
        const double scale = left[i * num_rows + row];
        Real squares = 0, plain = 0;
        if (quadratic) {
          const Real* q = quadratic + row * num_columns;
#pragma omp simd reduction(+ : squares)
          for (int64_t k = 0; k < width; ++k) squares += value[k] * value[k] * q[at[k]];
        } else {
#pragma omp simd reduction(+ : squares)
          for (int64_t k = 0; k < width; ++k) squares += value[k] * value[k];
        }
        if (cross) {
          const Real* c = cross + row * num_columns;
#pragma omp simd reduction(+ : plain)
          for (int64_t k = 0; k < width; ++k) plain += value[k] * c[at[k]];
        }
        totals[i] += scale * scale * squares + scale * plain;
      }
    }
  }
}

// The upper half of a float.
struct Bfloat16 {
  uint16_t bits;
};

DASGRAD_INLINE float widen(Bfloat16 number) {
  const uint32_t bits = uint32_t(number.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
DASGRAD_INLINE float widen(float number) { return number; }
DASGRAD_INLINE double widen(double number) { return number; }

constexpr int kTogether = 4;  // examples that share each reading of a matrix

// A vector of numbers that the compiler maps to a register of so many bytes.
template <typename Real, int kBytes = 64>
struct Lanes {
  static constexpr int kSize = kBytes / sizeof(Real);
#if defined(__GNUC__)
  typedef Real Vector __attribute__((vector_size(kBytes)));
  Vector value;
  DASGRAD_INLINE void add_product(Real scale, const Lanes& other) { value += scale * other.value; }
  DASGRAD_INLINE void add_product(const Lanes& a, const Lanes& b) { value += a.value * b.value; }
  DASGRAD_INLINE void add(const Lanes& other) { value += other.value; }
  DASGRAD_INLINE void square_into(Lanes& out) const { out.value = value * value; }
  DASGRAD_INLINE void keep_larger(const Lanes& other) { value = other.value > value ? other.value : value; }
  DASGRAD_INLINE void multiply_and_add(Real factor, Real term) { value = value * factor + term; }
#else
  Real value[kSize];
  DASGRAD_INLINE void add_product(Real scale, const Lanes& other) {
    for (int k = 0; k < kSize; ++k) value[k] += scale * other.value[k];
  }
  DASGRAD_INLINE void add_product(const Lanes& a, const Lanes& b) {
    for (int k = 0; k < kSize; ++k) value[k] += a.value[k] * b.value[k];
  }
  DASGRAD_INLINE void add(const Lanes& other) {
    for (int k = 0; k < kSize; ++k) value[k] += other.value[k];
  }
  DASGRAD_INLINE void square_into(Lanes& out) const {
    for (int k = 0; k < kSize; ++k) out.value[k] = value[k] * value[k];
  }
  DASGRAD_INLINE void keep_larger(const Lanes& other) {
    for (int k = 0; k < kSize; ++k) value[k] = other.value[k] > value[k] ? other.value[k] : value[k];
  }
  DASGRAD_INLINE void multiply_and_add(Real factor, Real term) {
    for (int k = 0; k < kSize; ++k) value[k] = value[k] * factor + term;
  }
#endif
  DASGRAD_INLINE void clear() { std::memset(&value, 0, sizeof value); }
  DASGRAD_INLINE void load(const Real* from) { std::memcpy(&value, from, sizeof value); }
  DASGRAD_INLINE void store(Real* to) const { std::memcpy(to, &value, sizeof value); }
  // By halves: one long chain of additions would take longer than the products.
  DASGRAD_INLINE double sum() const {
#if defined(__GNUC__)
    if constexpr (kBytes > 16) {
      Lanes<Real, kBytes / 2> halves[2];
      std::memcpy(halves, &value, sizeof halves);
      halves[0].add(halves[1]);
      return halves[0].sum();
    }
#endif
    Real lanes[kSize];
    std::memcpy(lanes, &value, sizeof lanes);
    for (int half = kSize / 2; half > 0; half /= 2)
      for (int k = 0; k < half; ++k) lanes[k] += lanes[k + half];
    return lanes[0];
  }
};

template <typename Real, int kBytes>
DASGRAD_INLINE void load(Lanes<Real, kBytes>& lanes, const Real* from) {
  lanes.load(from);
}

template <int kBytes>
DASGRAD_INLINE void load(Lanes<float, kBytes>& lanes, const Bfloat16* from) {
  constexpr int kSize = Lanes<float, kBytes>::kSize;
  uint16_t halves[kSize];
  uint32_t wholes[kSize];
  std::memcpy(halves, from, sizeof halves);
  for (int k = 0; k < kSize; ++k) wholes[k] = uint32_t(halves[k]) << 16;
  std::memcpy(&lanes.value, wholes, sizeof wholes);
}

constexpr int64_t kRowsAtOnce = 32, kVectorsAtOnce = 8;  // of Q, which stay near while the examples go by
constexpr int64_t kExamplesAtOnce = 64;

// left^2 of one example where it is not zero, and where the rows of Q begin that it is multiplied with. Behind rectified
// units half of it is zero, so that each example on its own takes less time than several that share each reading of Q.
template <typename Real>
struct Factors {
  int64_t number;
  int64_t places[kRowsAtOnce];
  Real squares[kRowsAtOnce];
};

template <typename Real>
DASGRAD_INLINE void find_factors(const Real* left, int64_t rows, int64_t num_columns, Factors<Real>& found) {
  int64_t number = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const Real square = left[row] * left[row];
    found.places[number] = row * num_columns;
    found.squares[number] = square;
    number += square != 0;
  }
  found.number = number;
}

// sums += (left^2 Q) right^2 over kVectors vectors of columns.
template <int kVectors, typename Real, int kBytes>
DASGRAD_INLINE void add_columns(const Factors<Real>& factors, const Real* matrix, const Real* right,
                                Lanes<Real, kBytes>& sums) {
  constexpr int kSize = Lanes<Real, kBytes>::kSize;
  Lanes<Real, kBytes> products[kVectors], values, total;
  total.clear();
  DASGRAD_UNROLLED
  for (int v = 0; v < kVectors; ++v) products[v] = total;
  for (int64_t k = 0; k < factors.number; ++k) {
    const Real* row = matrix + factors.places[k];
    DASGRAD_UNROLLED
    for (int v = 0; v < kVectors; ++v) {
      values.load(row + v * kSize);
      products[v].add_product(factors.squares[k], values);
    }
  }
  DASGRAD_UNROLLED
  for (int v = 0; v < kVectors; ++v) {
    values.load(right + v * kSize);
    values.square_into(values);
    total.add_product(products[v], values);
  }
  sums.add(total);
}

template <typename Real, int kBytes>
DASGRAD_INLINE void add_columns(int64_t num_vectors, const Factors<Real>& factors, const Real* matrix,
                                const Real* right, Lanes<Real, kBytes>& sums) {
  switch (num_vectors) {
    case 1: add_columns<1>(factors, matrix, right, sums); break;
    case 2: add_columns<2>(factors, matrix, right, sums); break;
    case 3: add_columns<3>(factors, matrix, right, sums); break;
    case 4: add_columns<4>(factors, matrix, right, sums); break;
    case 5: add_columns<5>(factors, matrix, right, sums); break;
    case 6: add_columns<6>(factors, matrix, right, sums); break;
    case 7: add_columns<7>(factors, matrix, right, sums); break;
    default: add_columns<kVectorsAtOnce>(factors, matrix, right, sums);
  }
}

template <typename Real>
struct Quadratic {
  const Real* left;  // [num_examples, num_rows], with so much from one example to the next
  int64_t left_example;
  const Real* right;  // [num_examples, num_columns]
  int64_t num_examples, num_rows, num_columns;
  const Real *matrix, *bias;  // bias null: no input beside right that is 1 for every example
  bool add;                   // to what totals hold
  double* totals;
};

template <int kBytes, typename Real>
DASGRAD_INLINE void sum_quadratic(const Quadratic<Real>& q) {
  const Real *left = q.left, *right = q.right, *quadratic = q.matrix, *bias = q.bias;
  const int64_t num_examples = q.num_examples, num_rows = q.num_rows, num_columns = q.num_columns;
  double* totals = q.totals;
  constexpr int64_t kSize = Lanes<Real, kBytes>::kSize;
  const int64_t vectors = num_columns / kSize, blocks = (vectors + kVectorsAtOnce - 1) / kVectorsAtOnce;
  const int64_t step = blocks ? (vectors + blocks - 1) / blocks : 1;  // blocks of about the same size
  Factors<Real> factors[kExamplesAtOnce];
  Lanes<Real, kBytes> sums[kExamplesAtOnce];
  for (int64_t i = 0; i < num_examples; i += kExamplesAtOnce) {
    const int64_t together = num_examples - i < kExamplesAtOnce ? num_examples - i : kExamplesAtOnce;
    double rest[kExamplesAtOnce] = {};
    for (int64_t e = 0; e < together; ++e) sums[e].clear();
    for (int64_t first = 0; first < num_rows; first += kRowsAtOnce) {
      const int64_t rows = num_rows - first < kRowsAtOnce ? num_rows - first : kRowsAtOnce;
      const Real* matrix = quadratic + first * num_columns;
      for (int64_t e = 0; e < together; ++e) {
        const Real* b = left + (i + e) * q.left_example + first;
        find_factors(b, rows, num_columns, factors[e]);
        if (bias)
          for (int64_t row = 0; row < rows; ++row) rest[e] += b[row] * b[row] * bias[first + row];
      }
      const int64_t span = kRowsAtOnce * kVectorsAtOnce / rows / step * step;
      for (int64_t begin = 0; begin < vectors; begin += span)
        for (int64_t e = 0; e < together; ++e) {
          const Real* x = right + (i + e) * num_columns;
          for (int64_t v = begin; v < vectors && v < begin + span; v += step)
            add_columns(vectors - v < step ? vectors - v : step, factors[e], matrix + v * kSize, x + v * kSize, sums[e]);
        }
      for (int64_t e = 0; e < together; ++e)
        for (int64_t k = vectors * kSize; k < num_columns; ++k) {
          const double value = right[(i + e) * num_columns + k];
          double product = 0;
          for (int64_t f = 0; f < factors[e].number; ++f)
            product += factors[e].squares[f] * matrix[factors[e].places[f] + k];
          rest[e] += product * value * value;
        }
    }
    for (int64_t e = 0; e < together; ++e) totals[i + e] = (q.add ? totals[i + e] : 0) + sums[e].sum() + rest[e];
  }
}

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
      if (kSquared) values[e].square_into(values[e]);
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
  const Real *weight, *bias, *quadratic, *cross;  // null: no bias, no momentum
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
    multiply_few<kBytes, Real, true>(rows, together, width, layer.quadratic, static_cast<const Real*>(nullptr), num_outputs,
                             layer.squares + at);
    if (layer.cross)
      multiply_few<kBytes, Real, false>(rows, together, width, layer.cross, static_cast<const Real*>(nullptr), num_outputs,
                                layer.crosses + at);
  }
}

// Per-example gradients as sums over positions, left [B, lines, T, rows], right [B, lines, T, columns]; steps are in
// numbers, and right has its columns side by side. The columns are a multiple of a vector's. A convolution's gradient is
// several of them: its taps see the same right, each from a place of its own.
template <typename Real>
struct Products {
  const Real *left, *right;
  const Real *quadratic, *cross;  // [taps, rows, columns]; null: 1 everywhere, 0 everywhere
  double* totals;                 // [B]
  const int64_t* taps;            // where each begins in right
  int64_t num_taps, num_examples, num_lines, num_positions, num_rows, num_columns;
  int64_t left_example, left_line, left_position, left_row, right_example, right_line, right_position;
};

// A block of kRows rows and kVectors vectors of one example's gradient, in registers, measured.
template <int kRows, int kVectors, typename Real>
DASGRAD_INLINE double measure_block(const Products<Real>& p, const Real* left, const Real* right, int64_t at) {
  constexpr int kSize = Lanes<Real>::kSize;
  Lanes<Real> sums[kRows][kVectors], values[kVectors], total;
  total.clear();
  DASGRAD_UNROLLED
  for (int row = 0; row < kRows; ++row) {
    DASGRAD_UNROLLED
    for (int v = 0; v < kVectors; ++v) sums[row][v] = total;
  }
  for (int64_t line = 0; line < p.num_lines; ++line) {
    const Real *scales = left + line * p.left_line, *entries = right + line * p.right_line;
    for (int64_t t = 0; t < p.num_positions; ++t, scales += p.left_position, entries += p.right_position) {
      DASGRAD_UNROLLED
      for (int v = 0; v < kVectors; ++v) values[v].load(entries + v * kSize);
      DASGRAD_UNROLLED
      for (int row = 0; row < kRows; ++row) {
        const Real scale = scales[row * p.left_row];
        DASGRAD_UNROLLED
        for (int v = 0; v < kVectors; ++v) sums[row][v].add_product(scale, values[v]);
      }
    }
  }
  Lanes<Real> entries, weights;
  DASGRAD_UNROLLED
  for (int row = 0; row < kRows; ++row) {
    DASGRAD_UNROLLED
    for (int v = 0; v < kVectors; ++v) {
      const int64_t place = at + row * p.num_columns + v * kSize;
      entries = sums[row][v];
      if (p.quadratic) {
        weights.load(p.quadratic + place);
        entries.clear();
        if (p.cross) entries.load(p.cross + place);
        entries.add_product(sums[row][v], weights);
      }
      total.add_product(sums[row][v], entries);
    }
  }
  return total.sum();
}

constexpr int kBlockRows = 6, kBlockVectors = 4;  // so many products of registers at once

// `at`: where in the terms its first row begins.
template <int kVectors, typename Real>
DASGRAD_INLINE double measure_columns(const Products<Real>& p, const Real* left, const Real* right, int64_t at) {
  double total = 0;
  for (int64_t row = 0; row < p.num_rows; row += kBlockRows, left += kBlockRows * p.left_row) {
    switch (p.num_rows - row) {
      case 1: total += measure_block<1, kVectors>(p, left, right, at + row * p.num_columns); break;
      case 2: total += measure_block<2, kVectors>(p, left, right, at + row * p.num_columns); break;
      case 3: total += measure_block<3, kVectors>(p, left, right, at + row * p.num_columns); break;
      case 4: total += measure_block<4, kVectors>(p, left, right, at + row * p.num_columns); break;
      case 5: total += measure_block<5, kVectors>(p, left, right, at + row * p.num_columns); break;
      default: total += measure_block<kBlockRows, kVectors>(p, left, right, at + row * p.num_columns);
    }
  }
  return total;
}

template <typename Real>
DASGRAD_INLINE double measure_tap(const Products<Real>& p, const Real* left, const Real* right, int64_t at) {
  constexpr int64_t kSize = Lanes<Real>::kSize;
  double total = 0;
  for (int64_t column = 0; column < p.num_columns; column += kBlockVectors * kSize) {
    switch ((p.num_columns - column) / kSize) {
      case 1: total += measure_columns<1>(p, left, right + column, at + column); break;
      case 2: total += measure_columns<2>(p, left, right + column, at + column); break;
      case 3: total += measure_columns<3>(p, left, right + column, at + column); break;
      default: total += measure_columns<kBlockVectors>(p, left, right + column, at + column);
    }
  }
  return total;
}

template <typename Real>
DASGRAD_INLINE void measure_products(const Products<Real>& p) {
  for (int64_t i = 0; i < p.num_examples; ++i) {
    const Real *left = p.left + i * p.left_example, *right = p.right + i * p.right_example;
    double total = 0;
    for (int64_t tap = 0; tap < p.num_taps; ++tap)
      total += measure_tap(p, left, right + p.taps[tap], tap * p.num_rows * p.num_columns);
    p.totals[i] = total;
  }
}

DASGRAD_WIDE void products32(const Products<float>& products) { measure_products(products); }

DASGRAD_WIDE void products64(const Products<double>& products) { measure_products(products); }

// c = a b: a [num_rows, depth] with any steps, b [depth, width] and c [num_rows, width] with rows of whole vectors.
template <typename Real>
struct Product {
  const Real *a, *b;
  Real* c;
  int64_t num_rows, depth, width, a_row, a_column;
};

template <int kRows, int kVectors, typename Real>
DASGRAD_INLINE void multiply_block(const Product<Real>& p, int64_t row, int64_t column) {
  constexpr int kSize = Lanes<Real>::kSize;
  Lanes<Real> sums[kRows][kVectors], values[kVectors];
  DASGRAD_UNROLLED
  for (int r = 0; r < kRows; ++r) {
    DASGRAD_UNROLLED
    for (int v = 0; v < kVectors; ++v) sums[r][v].clear();
  }
  const Real *a = p.a + row * p.a_row, *b = p.b + column;
  for (int64_t k = 0; k < p.depth; ++k, a += p.a_column, b += p.width) {
    DASGRAD_UNROLLED
    for (int v = 0; v < kVectors; ++v) values[v].load(b + v * kSize);
    DASGRAD_UNROLLED
    for (int r = 0; r < kRows; ++r) {
      const Real scale = a[r * p.a_row];
      DASGRAD_UNROLLED
      for (int v = 0; v < kVectors; ++v) sums[r][v].add_product(scale, values[v]);
    }
  }
  DASGRAD_UNROLLED
  for (int r = 0; r < kRows; ++r) {
    DASGRAD_UNROLLED
    for (int v = 0; v < kVectors; ++v) sums[r][v].store(p.c + (row + r) * p.width + column + v * kSize);
  }
}

template <int kVectors, typename Real>
DASGRAD_INLINE void multiply_columns(const Product<Real>& p, int64_t column) {
  constexpr int kRows = kVectors == 1 ? 8 : 6;
  int64_t row = 0;
  for (; row + kRows <= p.num_rows; row += kRows) multiply_block<kRows, kVectors>(p, row, column);
  for (; row < p.num_rows; ++row) multiply_block<1, kVectors>(p, row, column);
}

template <typename Real>
DASGRAD_INLINE void multiply(const Product<Real>& p) {
  constexpr int64_t kSize = Lanes<Real>::kSize;
  int64_t column = 0;
  for (; column + 4 * kSize <= p.width; column += 4 * kSize) multiply_columns<4>(p, column);
  for (; column < p.width; column += kSize) multiply_columns<1>(p, column);
}

// e^x of x <= 0, to a few units in the last place.
template <typename Real>
DASGRAD_INLINE void take_powers_of_e(Lanes<Real>& lanes) {
#if defined(__GNUC__)
  if constexpr (sizeof(Real) == 4) {
    typedef int32_t Integers __attribute__((vector_size(64)));
    typedef typename Lanes<Real>::Vector Vector;
    const Vector x = lanes.value, least = x * 0 - 87.0f, bounded = x < least ? least : x;
    const Integers exponent = __builtin_convertvector(bounded * 1.44269504f - 0.5f, Integers);
    const Vector whole = __builtin_convertvector(exponent, Vector);
    const Vector rest = bounded - whole * 0.693359375f + whole * 2.12194440e-4f;
    Vector series = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    series = series * rest + 8.3334519073e-3f;
    series = series * rest + 4.1665795894e-2f;
    series = series * rest + 1.6666665459e-1f;
    series = series * rest + 5.0000001201e-1f;
    series = series * rest * rest + rest + 1.0f;
    const Integers bits = (exponent + 127) << 23;
    Vector scale;
    std::memcpy(&scale, &bits, sizeof scale);
    lanes.value = x < least ? x * 0 : series * scale;
    return;
  }
#endif
  for (int k = 0; k < Lanes<Real>::kSize; ++k) lanes.value[k] = std::exp(lanes.value[k]);
}

// Steps are in numbers: between examples, heads and positions; the numbers of a position are side by side.
template <typename Real>
struct Sequences {
  Real* start;
  int64_t example, head, position;
};

template <typename Real>
struct Attention {
  Sequences<Real> query, key, value, output;  // output: its gradient, in a backward pass
  Sequences<Real> query_gradient, key_gradient, value_gradient;
  Real* scratch;
  int64_t first, last;  // heads, those of all examples counted together
  int64_t num_heads, num_queries, num_keys, width, value_width;
  double scale;
};

template <typename Real>
DASGRAD_INLINE Real* find_head(const Attention<Real>& p, const Sequences<Real>& sequences, int64_t at) {
  return sequences.start + at / p.num_heads * sequences.example + at % p.num_heads * sequences.head;
}

// [positions, numbers] to rows of whole vectors, filled up with zeros; or transposed to [numbers, positions].
template <bool kTransposed = false, typename Real>
DASGRAD_INLINE void pack(const Real* from, int64_t step, int64_t positions, int64_t numbers, Real scale, int64_t width,
                         Real* to) {
  std::memset(to, 0, sizeof(Real) * width * (kTransposed ? numbers : positions));
  if (kTransposed) {
    for (int64_t k = 0; k < numbers; ++k)
      for (int64_t t = 0; t < positions; ++t) to[k * width + t] = scale * from[t * step + k];
  } else {
    for (int64_t t = 0; t < positions; ++t)
      for (int64_t k = 0; k < numbers; ++k) to[t * width + k] = scale * from[t * step + k];
  }
}

template <typename Real>
DASGRAD_INLINE void unpack(const Real* from, int64_t width, int64_t positions, int64_t numbers, Real scale, Real* to,
                           int64_t step) {
  for (int64_t t = 0; t < positions; ++t)
    for (int64_t k = 0; k < numbers; ++k) to[t * step + k] = scale * from[t * width + k];
}

template <typename Real>
DASGRAD_INLINE int64_t whole_vectors(int64_t numbers) {
  constexpr int64_t kSize = Lanes<Real>::kSize;
  return (numbers + kSize - 1) / kSize * kSize;
}

// Each row of [num_queries, keys]: products to weights, with zeros behind them.
template <typename Real>
DASGRAD_INLINE void take_softmax(Real* rows, int64_t num_rows, int64_t num_keys, int64_t step) {
  constexpr int64_t kSize = Lanes<Real>::kSize;
  for (int64_t t = 0; t < num_rows; ++t) {
    Real *row = rows + t * step, lanes[kSize];
    for (int64_t k = num_keys; k < step; ++k) row[k] = row[0];
    Lanes<Real> values, found;
    found.load(row);
    for (int64_t k = kSize; k < step; k += kSize) {
      values.load(row + k);
      found.keep_larger(values);
    }
    found.store(lanes);
    for (int half = kSize / 2; half > 0; half /= 2)
      for (int k = 0; k < half; ++k) lanes[k] = lanes[k + half] > lanes[k] ? lanes[k + half] : lanes[k];
    for (int64_t k = num_keys; k < step; ++k) row[k] = lanes[0] - 1000;
    found.clear();
    for (int64_t k = 0; k < step; k += kSize) {
      values.load(row + k);
      values.multiply_and_add(Real(1), -lanes[0]);
      take_powers_of_e(values);
      values.store(row + k);
      found.add(values);
    }
    const Real share = Real(1 / found.sum());
    for (int64_t k = 0; k < step; k += kSize) {
      values.load(row + k);
      values.multiply_and_add(share, Real(0));
      values.store(row + k);
    }
  }
}

template <typename Real>
DASGRAD_INLINE void attend(const Attention<Real>& p, bool backward) {
  const int64_t keys = whole_vectors<Real>(p.num_keys), width = whole_vectors<Real>(p.width);
  const int64_t values = whole_vectors<Real>(p.value_width), most = p.num_queries > p.num_keys ? p.num_queries : p.num_keys;
  Real *weights = p.scratch, *slopes = weights + p.num_queries * keys, *queries = slopes + p.num_queries * keys;
  Real *packed = queries + p.num_queries * width, *result = packed + (most + width + values) * (keys + width + values);
  const Real scale = Real(p.scale);
  for (int64_t at = p.first; at < p.last; ++at) {
    const Real *key = find_head(p, p.key, at), *value = find_head(p, p.value, at);
    Real* output = find_head(p, p.output, at);
    pack(find_head(p, p.query, at), p.query.position, p.num_queries, p.width, scale, width, queries);
    pack<true>(key, p.key.position, p.num_keys, p.width, Real(1), keys, packed);
    multiply(Product<Real>{queries, packed, weights, p.num_queries, p.width, keys, width, 1});
    take_softmax(weights, p.num_queries, p.num_keys, keys);
    if (!backward) {
      pack(value, p.value.position, p.num_keys, p.value_width, Real(1), values, packed);
      multiply(Product<Real>{weights, packed, result, p.num_queries, p.num_keys, values, keys, 1});
      unpack(result, values, p.num_queries, p.value_width, Real(1), output, p.output.position);
      continue;
    }
    pack<true>(value, p.value.position, p.num_keys, p.value_width, Real(1), keys, packed);
    multiply(Product<Real>{output, packed, slopes, p.num_queries, p.value_width, keys, p.output.position, 1});
    for (int64_t t = 0; t < p.num_queries; ++t) {
      Real *slope = slopes + t * keys, sum = 0;
      const Real* weight = weights + t * keys;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < keys; ++k) sum += slope[k] * weight[k];
      for (int64_t k = 0; k < keys; ++k) slope[k] = weight[k] * (slope[k] - sum);
    }
    pack(static_cast<const Real*>(output), p.output.position, p.num_queries, p.value_width, Real(1), values, packed);
    multiply(Product<Real>{weights, packed, result, p.num_keys, p.num_queries, values, 1, keys});
    unpack(result, values, p.num_keys, p.value_width, Real(1), find_head(p, p.value_gradient, at),
           p.value_gradient.position);
    multiply(Product<Real>{slopes, queries, result, p.num_keys, p.num_queries, width, 1, keys});
    unpack(result, width, p.num_keys, p.width, Real(1), find_head(p, p.key_gradient, at), p.key_gradient.position);
    pack(key, p.key.position, p.num_keys, p.width, Real(1), width, packed);
    multiply(Product<Real>{slopes, packed, result, p.num_queries, p.num_keys, width, keys, 1});
    unpack(result, width, p.num_queries, p.width, scale, find_head(p, p.query_gradient, at), p.query_gradient.position);
  }
}

DASGRAD_WIDE void attend32(const Attention<float>& attention, bool backward) { attend(attention, backward); }

DASGRAD_WIDE void attend64(const Attention<double>& attention, bool backward) { attend(attention, backward); }

constexpr int64_t kTile = 8;  // rows: as many as a cache holds that are a power of two apart

// Factors [num_examples, num_positions, width]; sums [num_examples, width].
template <typename Real>
DASGRAD_INLINE void sum_normalised(const Real* x, const Real* g, int64_t num_examples, int64_t num_positions,
                                   int64_t width, Real eps, Real* sums) {
  for (int64_t i = 0; i < num_examples; ++i, sums += width) {
    std::fill(sums, sums + width, Real(0));
    for (int64_t t = 0; t < num_positions; ++t, x += width, g += width) {
      Real mean = 0, square = 0;
#pragma omp simd reduction(+ : mean)
      for (int64_t k = 0; k < width; ++k) mean += x[k];
      mean /= Real(width);
#pragma omp simd reduction(+ : square)
      for (int64_t k = 0; k < width; ++k) square += (x[k] - mean) * (x[k] - mean);
      const Real factor = 1 / std::sqrt(square / Real(width) + eps);
#pragma omp simd
      for (int64_t k = 0; k < width; ++k) sums[k] += g[k] * ((x[k] - mean) * factor);
    }
  }
}

template <typename Number>
DASGRAD_INLINE void transpose(const Number* from, int64_t number, int64_t num_rows, int64_t num_columns, Number* to) {
  for (int64_t i = 0; i < number; ++i, from += num_rows * num_columns, to += num_rows * num_columns)
    for (int64_t row = 0; row < num_rows; row += kTile)
      for (int64_t column = 0; column < num_columns; column += kTile) {
        const int64_t rows = num_rows - row < kTile ? num_rows - row : kTile;
        const int64_t columns = num_columns - column < kTile ? num_columns - column : kTile;
        const Number* source = from + row * num_columns + column;
        Number* target = to + column * num_rows + row;
        for (int64_t c = 0; c < columns; ++c)
          for (int64_t r = 0; r < rows; ++r) target[c * num_rows + r] = source[r * num_columns + c];
      }
}

template <typename Real>
DASGRAD_INLINE void invert_metric(const Real* curvature, int64_t size, Real scale, Real eps, Real share, Real* inverse) {
#pragma omp simd
  for (int64_t k = 0; k < size; ++k) inverse[k] = share / (scale * std::sqrt(curvature[k]) + eps);
}

DASGRAD_CLONES void invert32(const float* curvature, int64_t size, float scale, float eps, float share,
                             float* inverse) {
  invert_metric(curvature, size, scale, eps, share, inverse);
}

DASGRAD_CLONES void invert64(const double* curvature, int64_t size, double scale, double eps, double share,
                             double* inverse) {
  invert_metric(curvature, size, scale, eps, share, inverse);
}

DASGRAD_CLONES void dense32(const float* gradients, int64_t num_examples, int64_t size, const Terms<float>& terms,
                            double* totals) {
  sum_dense(gradients, num_examples, size, terms, totals);
}

DASGRAD_CLONES void dense64(const double* gradients, int64_t num_examples, int64_t size, const Terms<double>& terms,
                            double* totals) {
  sum_dense(gradients, num_examples, size, terms, totals);
}

DASGRAD_CLONES void polynomial32(const float* gradients, int64_t num_examples, int64_t size, const float* quadratic,
                                 const float* cross, double* totals) {
  sum_polynomial(gradients, num_examples, size, quadratic, cross, totals);
}

DASGRAD_CLONES void polynomial64(const double* gradients, int64_t num_examples, int64_t size, const double* quadratic,
                                 const double* cross, double* totals) {
  sum_polynomial(gradients, num_examples, size, quadratic, cross, totals);
}

DASGRAD_CLONES void normalised32(const float* x, const float* g, int64_t num_examples, int64_t num_positions,
                                 int64_t width, float eps, float* sums) {
  sum_normalised(x, g, num_examples, num_positions, width, eps, sums);
}

DASGRAD_CLONES void normalised64(const double* x, const double* g, int64_t num_examples, int64_t num_positions,
                                 int64_t width, double eps, double* sums) {
  sum_normalised(x, g, num_examples, num_positions, width, eps, sums);
}

DASGRAD_CLONES bool rows32(const Rows<float>& rows) { return sum_rows(rows); }

DASGRAD_CLONES bool rows64(const Rows<double>& rows) { return sum_rows(rows); }

DASGRAD_CLONES void outer32(const float* left, const float* right, int64_t num_examples, int64_t num_rows,
                            int64_t num_columns, const Terms<float>& terms, double* totals) {
  sum_outer(left, right, num_examples, num_rows, num_columns, terms, totals);
}

DASGRAD_CLONES void outer64(const double* left, const double* right, int64_t num_examples, int64_t num_rows,
                            int64_t num_columns, const Terms<double>& terms, double* totals) {
  sum_outer(left, right, num_examples, num_rows, num_columns, terms, totals);
}

#define DASGRAD_QUADRATIC(target, width, bytes)                                             \
  target void quadratic_##width(const Quadratic<float>& q) { sum_quadratic<bytes>(q); }     \
  target void quadratic_##width(const Quadratic<double>& q) { sum_quadratic<bytes>(q); }
DASGRAD_QUADRATIC(DASGRAD_WIDE, wide, 64)
DASGRAD_QUADRATIC(DASGRAD_HALF, half, 32)
DASGRAD_QUADRATIC(, narrow, 16)

template <typename Real>
void quadratic(const Quadratic<Real>& q) {
  if (DASGRAD_HAS_WIDE) return quadratic_wide(q);
  if (DASGRAD_HAS_HALF) return quadratic_half(q);
  quadratic_narrow(q);
}

DASGRAD_INLINE void invert(const float* v, int64_t size, const double* c, float* inverse) {
  invert32(v, size, float(c[0]), float(c[1]), float(c[2]), inverse);
}
DASGRAD_INLINE void invert(const double* v, int64_t size, const double* c, double* inverse) {
  invert64(v, size, c[0], c[1], c[2], inverse);
}
// The OpenMP that the caller computes with, by its own functions; `parallel` null: this thread alone.
struct Threads {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
  int (*rank)();
  int (*size)();
  int64_t number;
};

// part(first, last) for all of [0, number).
template <typename Part>
void share_out(const Threads& threads, int64_t number, const Part& part) {
  if (!threads.parallel || threads.number <= 1) return part(0, number);
  struct Work {
    const Threads& threads;
    int64_t number;
    const Part& part;
  } work = {threads, number, part};
  threads.parallel(
      [](void* argument) {
        const Work& w = *static_cast<const Work*>(argument);
        const int64_t rank = w.threads.rank(), size = w.threads.size();
        w.part(w.number * rank / size, w.number * (rank + 1) / size);
      },
      &work, unsigned(threads.number), 0);
}

template <typename Real>
struct FrozenLayer {
  const Real *left, *right;    // [num_examples, num_rows], [num_examples, num_columns]
  const Real *weight, *bias;   // v of each; bias null: none is scored
  int64_t num_rows, num_columns;
  int64_t num_threads;
  double coefficients[2][3];   // scale, eps and share of weight and bias
};

constexpr int64_t kFewEntries = 1 << 15;  // that a thread inverts in less time than it takes to start another

// Adds what rows [first, last) of a layer say of all examples. A few rows are inverted at a time, so that they stay in
// the cache; `inverse` has room for them.
template <typename Real>
void measure_rows(const FrozenLayer<Real>& layer, int64_t num_examples, int64_t first, int64_t last, Real* inverse,
                  double* totals) {
  Real bias[kRowsAtOnce];
  for (int64_t row = first; row < last; row += kRowsAtOnce) {
    const int64_t rows = last - row < kRowsAtOnce ? last - row : kRowsAtOnce;
    invert(layer.weight + row * layer.num_columns, rows * layer.num_columns, layer.coefficients[0], inverse);
    if (layer.bias) invert(layer.bias + row, rows, layer.coefficients[1], bias);
    quadratic(Quadratic<Real>{layer.left + row, layer.num_rows, layer.right, num_examples, rows, layer.num_columns,
                              inverse, layer.bias ? bias : nullptr, true, totals});
  }
}

// The same of all rows of a small layer, of which threads take the examples.
template <typename Real>
void measure_examples(const FrozenLayer<Real>& layer, int64_t num_examples, Real* inverse, double* totals,
                      const Threads& threads) {
  const int64_t size = layer.num_rows * layer.num_columns;
  Real* bias = layer.bias ? inverse + size : nullptr;
  if (bias) invert(layer.bias, layer.num_rows, layer.coefficients[1], bias);
  const Threads inverting = {size < kFewEntries ? nullptr : threads.parallel, threads.rank, threads.size, threads.number};
  share_out(inverting, size, [&](int64_t first, int64_t last) {
    invert(layer.weight + first, last - first, layer.coefficients[0], inverse + first);
  });
  share_out(threads, num_examples, [&](int64_t first, int64_t last) {
    quadratic(Quadratic<Real>{layer.left + first * layer.num_rows, layer.num_rows,
                              layer.right + first * layer.num_columns, last - first, layer.num_rows, layer.num_columns,
                              inverse, bias, true, totals + first});
  });
}

// Totals of a thread begin at whole vectors.
constexpr int64_t whole_totals(int64_t num_examples) { return (num_examples + 7) / 8 * 8; }

// Adds to totals what a layer says of each example. `inverse`: room for both of its metrics; `totals`: for those of each
// thread, the first of which are added to.
template <typename Real>
void measure_layer(const FrozenLayer<Real>& layer, int64_t num_examples, Real* inverse, double* totals,
                   Threads threads) {
  threads.number = layer.num_threads;
  if (layer.num_rows <= kRowsAtOnce * layer.num_threads)
    return measure_examples(layer, num_examples, inverse, totals, threads);
  const int64_t step = whole_totals(num_examples);
  std::fill(totals + step, totals + layer.num_threads * step, 0.0);
  share_out(threads, layer.num_rows, [&](int64_t first, int64_t last) {
    const int64_t rank = threads.parallel && threads.number > 1 ? threads.rank() : 0;
    measure_rows(layer, num_examples, first, last, inverse + first * layer.num_columns, totals + rank * step);
  });
  for (int64_t rank = 1; rank < layer.num_threads; ++rank)
    for (int64_t i = 0; i < num_examples; ++i) totals[i] += totals[rank * step + i];
}

template <typename Real>
void take_roots(const double* totals, const Real* weights, double scale, int64_t num_examples, Real* lengths) {
  for (int64_t i = 0; i < num_examples; ++i) lengths[i] = Real(std::sqrt(totals[i]) / (scale * weights[i]));
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

DASGRAD_CLONES void sparse32(const int64_t* starts, const int64_t* columns, const float* values, const float* left,
                             int64_t num_examples, int64_t num_rows, int64_t num_columns, const Terms<float>& terms,
                             double* totals) {
  sum_sparse(starts, columns, values, left, num_examples, num_rows, num_columns, terms, totals);
}

DASGRAD_CLONES void sparse_quadratic32(const int64_t* starts, const int64_t* columns, const float* values,
                                       const float* left, int64_t num_examples, int64_t num_rows,
                                       int64_t num_columns, const float* quadratic, const float* cross,
                                       double* totals) {
  sum_sparse_quadratic(starts, columns, values, left, num_examples, num_rows, num_columns, quadratic, cross, totals);
}

DASGRAD_CLONES void sparse64(const int64_t* starts, const int64_t* columns, const double* values, const double* left,
                             int64_t num_examples, int64_t num_rows, int64_t num_columns, const Terms<double>& terms,
                             double* totals) {
  sum_sparse(starts, columns, values, left, num_examples, num_rows, num_columns, terms, totals);
}

DASGRAD_CLONES void sparse_quadratic64(const int64_t* starts, const int64_t* columns, const double* values,
                                       const double* left, int64_t num_examples, int64_t num_rows,
                                       int64_t num_columns, const double* quadratic, const double* cross,
                                       double* totals) {
  sum_sparse_quadratic(starts, columns, values, left, num_examples, num_rows, num_columns, quadratic, cross, totals);
}

}  // namespace

DASGRAD_EXPORT void dasgrad_inverse_metric32(const float* curvature, int64_t size, double scale, double eps,
                                             double share, float* inverse) {
  invert32(curvature, size, float(scale), float(eps), float(share), inverse);
}

DASGRAD_EXPORT void dasgrad_inverse_metric64(const double* curvature, int64_t size, double scale, double eps,
                                             double share, double* inverse) {
  invert64(curvature, size, scale, eps, share, inverse);
}

// `matrices`: weight, bias or null, quadratic, cross or null. `results`: outputs, squares, crosses or null.
DASGRAD_EXPORT void dasgrad_linear_with_squares16(const uint16_t* x, int64_t num_examples, int64_t num_inputs,
                                                  int64_t num_outputs, const float* const* matrices,
                                                  float* const* results) {
  const Layer<float> layer = {matrices[0], matrices[1], matrices[2], matrices[3], num_inputs,
                              num_outputs, results[0],  results[1],  results[2]};
  linear(reinterpret_cast<const Bfloat16*>(x), num_examples, layer);
}

DASGRAD_EXPORT void dasgrad_linear_with_squares32(const float* x, int64_t num_examples, int64_t num_inputs,
                                                  int64_t num_outputs, const float* const* matrices,
                                                  float* const* results) {
  const Layer<float> layer = {matrices[0], matrices[1], matrices[2], matrices[3], num_inputs,
                              num_outputs, results[0],  results[1],  results[2]};
  linear(x, num_examples, layer);
}

DASGRAD_EXPORT void dasgrad_linear_with_squares64(const double* x, int64_t num_examples, int64_t num_inputs,
                                                  int64_t num_outputs, const double* const* matrices,
                                                  double* const* results) {
  const Layer<double> layer = {matrices[0], matrices[1], matrices[2], matrices[3], num_inputs,
                               num_outputs, results[0],  results[1],  results[2]};
  linear(x, num_examples, layer);
}

DASGRAD_EXPORT void dasgrad_polynomial32(const float* gradients, int64_t num_examples, int64_t size,
                                         const float* quadratic, const float* cross, double* totals) {
  polynomial32(gradients, num_examples, size, quadratic, cross, totals);
}

DASGRAD_EXPORT void dasgrad_polynomial64(const double* gradients, int64_t num_examples, int64_t size,
                                         const double* quadratic, const double* cross, double* totals) {
  polynomial64(gradients, num_examples, size, quadratic, cross, totals);
}

DASGRAD_EXPORT void dasgrad_normalised_sums32(const float* x, const float* g, int64_t num_examples,
                                              int64_t num_positions, int64_t width, double eps, float* sums) {
  normalised32(x, g, num_examples, num_positions, width, float(eps), sums);
}

DASGRAD_EXPORT void dasgrad_normalised_sums64(const double* x, const double* g, int64_t num_examples,
                                              int64_t num_positions, int64_t width, double eps, double* sums) {
  normalised64(x, g, num_examples, num_positions, width, eps, sums);
}

DASGRAD_EXPORT int64_t dasgrad_rows32(const Rows<float>* rows) { return rows32(*rows); }

DASGRAD_EXPORT int64_t dasgrad_rows64(const Rows<double>* rows) { return rows64(*rows); }

DASGRAD_EXPORT void dasgrad_transpose32(const uint32_t* from, int64_t number, int64_t num_rows, int64_t num_columns,
                                        uint32_t* to) {
  transpose(from, number, num_rows, num_columns, to);
}

DASGRAD_EXPORT void dasgrad_transpose64(const uint64_t* from, int64_t number, int64_t num_rows, int64_t num_columns,
                                        uint64_t* to) {
  transpose(from, number, num_rows, num_columns, to);
}

DASGRAD_EXPORT void dasgrad_attention32(const Attention<float>* attention, int64_t backward) {
  attend32(*attention, backward != 0);
}

DASGRAD_EXPORT void dasgrad_attention64(const Attention<double>* attention, int64_t backward) {
  attend64(*attention, backward != 0);
}

DASGRAD_EXPORT int64_t dasgrad_has_sums_of_products() { return DASGRAD_HAS_WIDE; }

DASGRAD_EXPORT void dasgrad_sums_of_products32(const Products<float>* products) { products32(*products); }

DASGRAD_EXPORT void dasgrad_sums_of_products64(const Products<double>* products) { products64(*products); }

DASGRAD_EXPORT void dasgrad_quadratic32(const float* left, const float* right, int64_t num_examples,
                                        int64_t num_rows, int64_t num_columns, const float* matrix,
                                        const float* bias, double* totals) {
  quadratic(Quadratic<float>{left, num_rows, right, num_examples, num_rows, num_columns, matrix, bias, false, totals});
}

DASGRAD_EXPORT void dasgrad_quadratic64(const double* left, const double* right, int64_t num_examples,
                                        int64_t num_rows, int64_t num_columns, const double* matrix,
                                        const double* bias, double* totals) {
  quadratic(Quadratic<double>{left, num_rows, right, num_examples, num_rows, num_columns, matrix, bias, false, totals});
}

DASGRAD_EXPORT void dasgrad_frozen_layer32(const FrozenLayer<float>* layer, int64_t num_examples, float* inverse,
                                           double* totals, const Threads* threads) {
  measure_layer(*layer, num_examples, inverse, totals, *threads);
}

DASGRAD_EXPORT void dasgrad_frozen_layer64(const FrozenLayer<double>* layer, int64_t num_examples, double* inverse,
                                           double* totals, const Threads* threads) {
  measure_layer(*layer, num_examples, inverse, totals, *threads);
}

DASGRAD_EXPORT void dasgrad_lengths32(const double* totals, const float* weights, double scale, int64_t num_examples,
                                      float* lengths) {
  take_roots(totals, weights, scale, num_examples, lengths);
}

DASGRAD_EXPORT void dasgrad_lengths64(const double* totals, const double* weights, double scale, int64_t num_examples,
                                      double* lengths) {
  take_roots(totals, weights, scale, num_examples, lengths);
}

// `coefficients`: gain, slope, sign, eps. `arrays`: floor, past, decay or null, offset or null.
DASGRAD_EXPORT void dasgrad_own_dense32(const float* gradients, int64_t num_examples, int64_t size,
                                        const float* const* arrays, const double* coefficients, double* totals) {
  const double* c = coefficients;
  const Terms<float> terms = {arrays[0],   arrays[1],   arrays[2],   arrays[3],
                              float(c[0]), float(c[1]), float(c[2]), float(c[3])};
  dense32(gradients, num_examples, size, terms, totals);
}

DASGRAD_EXPORT void dasgrad_own_dense64(const double* gradients, int64_t num_examples, int64_t size,
                                        const double* const* arrays, const double* coefficients, double* totals) {
  const double* c = coefficients;
  const Terms<double> terms = {arrays[0], arrays[1], arrays[2], arrays[3], c[0], c[1], c[2], c[3]};
  dense64(gradients, num_examples, size, terms, totals);
}

DASGRAD_EXPORT void dasgrad_own_outer32(const float* left, const float* right, int64_t num_examples, int64_t num_rows,
                                        int64_t num_columns, const float* const* arrays, const double* coefficients,
                                        double* totals) {
  const double* c = coefficients;
  const Terms<float> terms = {arrays[0],   arrays[1],   arrays[2],   arrays[3],
                              float(c[0]), float(c[1]), float(c[2]), float(c[3])};
  outer32(left, right, num_examples, num_rows, num_columns, terms, totals);
}

DASGRAD_EXPORT void dasgrad_own_outer64(const double* left, const double* right, int64_t num_examples,
                                        int64_t num_rows, int64_t num_columns, const double* const* arrays,
                                        const double* coefficients, double* totals) {
  const double* c = coefficients;
  const Terms<double> terms = {arrays[0], arrays[1], arrays[2], arrays[3], c[0], c[1], c[2], c[3]};
  outer64(left, right, num_examples, num_rows, num_columns, terms, totals);
}

DASGRAD_EXPORT void dasgrad_own_sparse32(const int64_t* starts, const int64_t* columns, const float* values,
                                         const float* left, int64_t num_examples, int64_t num_rows,
                                         int64_t num_columns, const float* const* arrays,
                                         const double* coefficients, double* totals) {
  const double* c = coefficients;
  const Terms<float> terms = {arrays[0], arrays[1], arrays[2], arrays[3], float(c[0]), float(c[1]), float(c[2]), float(c[3])};
  sparse32(starts, columns, values, left, num_examples, num_rows, num_columns, terms, totals);
}

DASGRAD_EXPORT void dasgrad_quadratic_sparse32(const int64_t* starts, const int64_t* columns, const float* values,
                                               const float* left, int64_t num_examples, int64_t num_rows,
                                               int64_t num_columns, const float* quadratic, const float* cross,
                                               double* totals) {
  sparse_quadratic32(starts, columns, values, left, num_examples, num_rows, num_columns, quadratic, cross, totals);
}

DASGRAD_EXPORT void dasgrad_own_sparse64(const int64_t* starts, const int64_t* columns, const double* values,
                                         const double* left, int64_t num_examples, int64_t num_rows,
                                         int64_t num_columns, const double* const* arrays,
                                         const double* coefficients, double* totals) {
  const double* c = coefficients;
  const Terms<double> terms = {arrays[0], arrays[1], arrays[2], arrays[3], c[0], c[1], c[2], c[3]};
  sparse64(starts, columns, values, left, num_examples, num_rows, num_columns, terms, totals);
}

DASGRAD_EXPORT void dasgrad_quadratic_sparse64(const int64_t* starts, const int64_t* columns, const double* values,
                                               const double* left, int64_t num_examples, int64_t num_rows,
                                               int64_t num_columns, const double* quadratic, const double* cross,
                                               double* totals) {
  sparse_quadratic64(starts, columns, values, left, num_examples, num_rows, num_columns, quadratic, cross, totals);
}
