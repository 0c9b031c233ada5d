// Outer products in a frozen metric, as `quadratic` in measures.cpp.

#pragma once

#include "vectors.h"

namespace {

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

}  // namespace
