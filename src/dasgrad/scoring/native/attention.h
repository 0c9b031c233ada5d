// softmax(scale q k^T) v and its gradients, as `attention` in measures.cpp.

#pragma once

#include "vectors.h"

namespace {

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

}  // namespace
