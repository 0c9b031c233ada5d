// Sums of outer products over positions, as `sums_of_products` in measures.cpp.

#pragma once

#include "vectors.h"

namespace {

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

}  // namespace
