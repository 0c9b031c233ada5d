// Gradients in a frozen metric: all entries, some rows, or outer products of which one side is sparse.

#pragma once

#include "vectors.h"

namespace {

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

DASGRAD_CLONES void polynomial32(const float* gradients, int64_t num_examples, int64_t size, const float* quadratic,
                                 const float* cross, double* totals) {
  sum_polynomial(gradients, num_examples, size, quadratic, cross, totals);
}

DASGRAD_CLONES void polynomial64(const double* gradients, int64_t num_examples, int64_t size, const double* quadratic,
                                 const double* cross, double* totals) {
  sum_polynomial(gradients, num_examples, size, quadratic, cross, totals);
}

DASGRAD_CLONES bool rows32(const Rows<float>& rows) { return sum_rows(rows); }

DASGRAD_CLONES bool rows64(const Rows<double>& rows) { return sum_rows(rows); }

DASGRAD_CLONES void sparse_quadratic32(const int64_t* starts, const int64_t* columns, const float* values,
                                       const float* left, int64_t num_examples, int64_t num_rows,
                                       int64_t num_columns, const float* quadratic, const float* cross,
                                       double* totals) {
  sum_sparse_quadratic(starts, columns, values, left, num_examples, num_rows, num_columns, quadratic, cross, totals);
}

DASGRAD_CLONES void sparse_quadratic64(const int64_t* starts, const int64_t* columns, const double* values,
                                       const double* left, int64_t num_examples, int64_t num_rows,
                                       int64_t num_columns, const double* quadratic, const double* cross,
                                       double* totals) {
  sum_sparse_quadratic(starts, columns, values, left, num_examples, num_rows, num_columns, quadratic, cross, totals);
}

}  // namespace
