// From second moments to the shares of a layer: `inverse_metric`, `frozen_layer` and `lengths` in measures.cpp.

#pragma once

#include "quadratic.h"

namespace {

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

}  // namespace
