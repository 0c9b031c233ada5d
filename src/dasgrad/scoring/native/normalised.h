// The gradient of a layer norm's weight, as `normalised_sums` in measures.cpp.

#pragma once

#include "vectors.h"

namespace {

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

DASGRAD_CLONES void normalised32(const float* x, const float* g, int64_t num_examples, int64_t num_positions,
                                 int64_t width, float eps, float* sums) {
  sum_normalised(x, g, num_examples, num_positions, width, eps, sums);
}

DASGRAD_CLONES void normalised64(const double* x, const double* g, int64_t num_examples, int64_t num_positions,
                                 int64_t width, double eps, double* sums) {
  sum_normalised(x, g, num_examples, num_positions, width, eps, sums);
}

}  // namespace
