// Calls every function of measures.cpp on buffers of exactly the size it may read and write, for the sanitizers, and
// compares it with the formula written out.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

extern "C" {
void dasgrad_own_dense32(const float*, int64_t, int64_t, const float* const*, const double*, double*);
void dasgrad_own_dense64(const double*, int64_t, int64_t, const double* const*, const double*, double*);
void dasgrad_own_outer32(const float*, const float*, int64_t, int64_t, int64_t, const float* const*, const double*,
                         double*);
void dasgrad_own_outer64(const double*, const double*, int64_t, int64_t, int64_t, const double* const*, const double*,
                         double*);
void dasgrad_polynomial32(const float*, int64_t, int64_t, const float*, const float*, double*);
void dasgrad_polynomial64(const double*, int64_t, int64_t, const double*, const double*, double*);
void dasgrad_quadratic32(const float*, const float*, int64_t, int64_t, int64_t, const float*, const float*, double*);
void dasgrad_quadratic64(const double*, const double*, int64_t, int64_t, int64_t, const double*, const double*,
                         double*);
void dasgrad_own_sparse32(const int64_t*, const int64_t*, const float*, const float*, int64_t, int64_t, int64_t,
                          const float* const*, const double*, double*);
void dasgrad_quadratic_sparse32(const int64_t*, const int64_t*, const float*, const float*, int64_t, int64_t, int64_t,
                                const float*, const float*, double*);
void dasgrad_own_sparse64(const int64_t*, const int64_t*, const double*, const double*, int64_t, int64_t, int64_t,
                          const double* const*, const double*, double*);
void dasgrad_quadratic_sparse64(const int64_t*, const int64_t*, const double*, const double*, int64_t, int64_t, int64_t,
                                const double*, const double*, double*);
void dasgrad_frozen_layer32(const void*, int64_t, float*, double*, const void*);
void dasgrad_frozen_layer64(const void*, int64_t, double*, double*, const void*);
void dasgrad_lengths32(const double*, const float*, double, int64_t, float*);
void dasgrad_lengths64(const double*, const double*, double, int64_t, double*);
void dasgrad_attention32(const void*, int64_t);
void dasgrad_attention64(const void*, int64_t);
void dasgrad_normalised_sums32(const float*, const float*, int64_t, int64_t, int64_t, double, float*);
void dasgrad_normalised_sums64(const double*, const double*, int64_t, int64_t, int64_t, double, double*);
int64_t dasgrad_rows32(const void*);
int64_t dasgrad_rows64(const void*);
void dasgrad_transpose32(const uint32_t*, int64_t, int64_t, int64_t, uint32_t*);
void dasgrad_transpose64(const uint64_t*, int64_t, int64_t, int64_t, uint64_t*);
int64_t dasgrad_has_sums_of_products();
void dasgrad_sums_of_products32(const void*);
void dasgrad_sums_of_products64(const void*);
void dasgrad_inverse_metric32(const float*, int64_t, double, double, double, float*);
void dasgrad_inverse_metric64(const double*, int64_t, double, double, double, double*);
void dasgrad_linear_with_squares16(const uint16_t*, int64_t, int64_t, int64_t, const float* const*, float* const*);
void dasgrad_linear_with_squares32(const float*, int64_t, int64_t, int64_t, const float* const*, float* const*);
void dasgrad_sparse_linear32(const int64_t*, const int64_t*, const float*, int64_t, int64_t, int64_t, const float*,
                             const float*, float*);
void dasgrad_sparse_linear64(const int64_t*, const int64_t*, const double*, int64_t, int64_t, int64_t, const double*,
                             const double*, double*);
void dasgrad_linear_with_squares64(const double*, int64_t, int64_t, int64_t, const double* const*, double* const*);
}

namespace {

template <typename Real>
std::vector<Real> numbers(int64_t size, double low, double high) {
  std::vector<Real> values(size);
  for (Real& value : values) value = Real(low + (high - low) * std::rand() / RAND_MAX);
  return values;
}

void check(double found, double expected, double tolerance) {
  if (std::abs(found - expected) <= tolerance * (1 + std::abs(expected))) return;
  std::printf("found %.17g, expected %.17g\n", found, expected);
  std::exit(1);
}

// `inputs` as the function takes them, `values` what they stand for.
template <typename Real, typename Linear, typename In>
void check_linear(Linear linear, const std::vector<In>& inputs, const std::vector<Real>& values, int64_t examples,
                  int64_t rows, int64_t columns, const Real* const* matrices, double tolerance) {
  std::vector<Real> outputs(examples * rows), squares(examples * rows), crosses(matrices[3] ? examples * rows : 0);
  Real* results[3] = {outputs.data(), squares.data(), matrices[3] ? crosses.data() : nullptr};
  linear(inputs.data(), examples, columns, rows, matrices, results);
  for (int64_t i = 0; i < examples; ++i)
    for (int64_t o = 0; o < rows; ++o) {
      double output = matrices[1] ? matrices[1][o] : Real(0), square = 0, cross = 0;
      for (int64_t k = 0; k < columns; ++k) {
        const double x = values[i * columns + k];
        output += x * matrices[0][o * columns + k];
        square += x * x * matrices[2][o * columns + k];
        if (matrices[3]) cross += x * matrices[3][o * columns + k];
      }
      check(outputs[i * rows + o], output, tolerance);
      check(squares[i * rows + o], square, tolerance);
      if (matrices[3]) check(crosses[i * rows + o], cross, tolerance);
    }
}

int rank_of_thread = 0;

// As in measures.cpp.
template <typename Real>
struct FrozenLayer {
  const Real *left, *right, *weight, *bias;
  int64_t num_rows, num_columns, num_threads;
  double coefficients[2][3];
};
struct Threads {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
  int (*rank)();
  int (*size)();
  int64_t number;
};

// One after the other: what counts is that each does its part.
void on_two_threads(void (*body)(void*), void* argument, unsigned, unsigned) {
  for (rank_of_thread = 0; rank_of_thread < 2; ++rank_of_thread) body(argument);
}

template <typename Real, typename Layer, typename Roots>
void check_layer(Layer measure, Roots take_roots, const std::vector<Real>& left, const std::vector<Real>& right,
                 int64_t examples, int64_t rows, int64_t columns, const std::vector<Real>& weight, const Real* bias,
                 bool threaded, double tolerance) {
  std::vector<Real> inverse(rows * columns + (bias ? rows : 0));
  std::vector<double> totals(2 * ((examples + 7) / 8 * 8));  // those of each thread
  const FrozenLayer<Real> layer = {left.data(), right.data(), weight.data(), bias, rows, columns, 2,
                                   {{0.5, 1e-3, 2.0}, {0.25, 1e-2, 3.0}}};
  const Threads threads = {threaded ? on_two_threads : nullptr, [] { return rank_of_thread; }, [] { return 2; }, 1};
  const auto weights = numbers<Real>(examples, 0.5, 2);
  std::vector<Real> lengths(examples);
  for (int times = 0; times < (threaded ? 2 : 1); ++times)
    measure(&layer, examples, inverse.data(), totals.data(), &threads);
  take_roots(totals.data(), weights.data(), 0.25, examples, lengths.data());
  for (int64_t i = 0; i < examples; ++i) {
    double expected = 0;
    for (int64_t o = 0; o < rows; ++o) {
      const double b = left[i * rows + o];
      if (bias) expected += b * b * 3.0 / (0.25 * std::sqrt(bias[o]) + 1e-2);
      for (int64_t k = 0; k < columns; ++k) {
        const double x = right[i * columns + k];
        expected += b * b * x * x * 2.0 / (0.5 * std::sqrt(weight[o * columns + k]) + 1e-3);
      }
    }
    check(totals[i], threaded ? 2 * expected : expected, tolerance);
  }
  for (int64_t i = 0; i < examples; ++i) check(lengths[i], std::sqrt(totals[i]) / (0.25 * weights[i]), tolerance);
}

// As in measures.cpp.
template <typename Real>
struct Products {
  const Real *left, *right, *quadratic, *cross;
  double* totals;
  const int64_t* taps;
  int64_t num_taps, num_examples, num_lines, num_positions, num_rows, num_columns;
  int64_t left_example, left_line, left_position, left_row, right_example, right_line, right_position;
};

// Two taps: what right holds from the start, and from a position later on.
template <typename Real, typename Sums>
int64_t run_products(Sums measure, double tolerance) {
  int64_t num_cases = 0;
  if (!dasgrad_has_sums_of_products()) return num_cases;
  for (int64_t examples : {0, 1, 3})
    for (int64_t positions : {0, 1, 5})
      for (int64_t rows : {1, 2, 3, 4, 5, 6, 13})
        for (int64_t columns : {16, 32, 48, 64, 112})
          for (int options = 0; options < 3; ++options) {
            const int64_t lines = 2, seen = lines * (positions + 1), size = rows * columns;
            const auto left = numbers<Real>(examples * rows * lines * positions, -1, 1);
            const auto right = numbers<Real>(examples * seen * columns, -1, 1);
            const auto quadratic = numbers<Real>(2 * size, 0, 1), cross = numbers<Real>(2 * size, -1, 1);
            std::vector<double> totals(examples);
            const int64_t taps[] = {0, columns};
            const Products<Real> products = {
                left.data(), right.data(), options > 0 ? quadratic.data() : nullptr,
                options > 1 ? cross.data() : nullptr, totals.data(), taps, 2, examples, lines, positions, rows, columns,
                rows * lines * positions, positions, 1, lines * positions,
                seen * columns, (positions + 1) * columns, columns};
            measure(&products);
            for (int64_t i = 0; i < examples; ++i) {
              double expected = 0;
              for (int64_t at = 0; at < 2 * size; ++at) {
                const int64_t tap = at / size, row = at % size / columns, column = at % columns;
                double g = 0;
                for (int64_t line = 0; line < lines; ++line)
                  for (int64_t t = 0; t < positions; ++t)
                    g += double(left[((i * rows + row) * lines + line) * positions + t]) *
                         right[(i * seen + line * (positions + 1) + t + tap) * columns + column];
                expected += (options > 0 ? quadratic[at] : 1.0) * g * g + (options > 1 ? cross[at] * g : 0.0);
              }
              check(totals[i], expected, tolerance);
            }
            ++num_cases;
          }
  return num_cases;
}

// As in measures.cpp.
template <typename Real>
struct Sequences {
  Real* start;
  int64_t example, head, position;
};

template <typename Real>
struct Attention {
  Sequences<Real> sequences[7];
  Real* scratch;
  int64_t first, last, num_heads, num_queries, num_keys, width, value_width;
  double scale;
};

// That nothing is read or written outside; values are compared with torch's elsewhere.
template <typename Real, typename Attend>
int64_t run_attention(Attend attend) {
  int64_t num_cases = 0;
  if (!dasgrad_has_sums_of_products()) return num_cases;
  for (int64_t queries : {1, 6, 17})
    for (int64_t keys : {1, 5, 33})
      for (int64_t width : {1, 16, 20})
        for (int64_t value_width : {1, 8, 33}) {
          const int64_t heads = 2, positions[] = {queries, keys, keys, queries, queries, keys, keys};
          const int64_t widths[] = {width, width, value_width, value_width, width, width, value_width};
          std::vector<std::vector<Real>> held;
          Attention<Real> attention = {};
          for (int k = 0; k < 7; ++k) {
            held.push_back(numbers<Real>(2 * heads * positions[k] * widths[k], -1, 1));
            const int64_t step = positions[k] * widths[k];
            attention.sequences[k] = {held.back().data(), heads * step, step, widths[k]};
          }
          const int64_t most = queries > keys ? queries : keys, a = keys + 64, b = width + 64, c = value_width + 64;
          std::vector<Real> scratch(queries * (2 * a + b) + 2 * (most + b + c) * (a + b + c));
          attention.scratch = scratch.data();
          attention.last = 2 * heads;
          attention.num_heads = heads;
          attention.num_queries = queries;
          attention.num_keys = keys;
          attention.width = width;
          attention.value_width = value_width;
          attention.scale = 0.5;
          attend(&attention, 1);
          attend(&attention, 0);
          for (Real output : held[3]) check(output < 2 && output > -2, 1, 0);
          ++num_cases;
        }
  return num_cases;
}

template <typename Number, typename Transpose>
int64_t run_transpose(Transpose transpose) {
  int64_t num_cases = 0;
  for (int64_t rows : {1, 8, 19})
    for (int64_t columns : {1, 16, 9}) {
      const auto given = numbers<float>(2 * rows * columns, 0, 1000);
      std::vector<Number> from(given.begin(), given.end()), to(from.size());
      transpose(from.data(), 2, rows, columns, to.data());
      for (int64_t at = 0; at < rows * columns; ++at)
        check(double(to[rows * columns + at % columns * rows + at / columns]), double(from[rows * columns + at]), 0);
      ++num_cases;
    }
  return num_cases;
}

template <typename Real, typename Dense, typename OuterProducts, typename Quadratic, typename Linear, typename Inverse,
          typename Polynomial>
int64_t run(Dense dense, OuterProducts outer, Quadratic quadratic, Linear linear, Inverse inverse,
            Polynomial polynomial, double tolerance) {
  int64_t num_cases = 0;
  for (int64_t examples : {0, 1, 3, 4, 9})
    for (int64_t rows : {1, 2, 5, 10, 257})
      for (int64_t columns : {1, 15, 16, 17, 1025})
        for (int options = 0; options < 4 && rows * columns < 20000; ++options) {
          const auto left = numbers<Real>(examples * rows, -1, 1), right = numbers<Real>(examples * columns, -1, 1);
          const auto floor = numbers<Real>(rows * columns, 0.1, 1), past = numbers<Real>(rows * columns, 0, 1);
          const auto decay = numbers<Real>(rows * columns, -1, 1), offset = numbers<Real>(rows * columns, -1, 1);
          const Real* arrays[4] = {floor.data(), past.data(), options & 1 ? decay.data() : nullptr,
                                   options & 2 ? offset.data() : nullptr};
          const double c[4] = {0.5, 0.25, -1.0, 1e-3};
          std::vector<Real> gradients(examples * rows * columns);
          std::vector<double> expected(examples), weighted(examples), totals(examples);
          for (int64_t i = 0; i < examples; ++i)
            for (int64_t o = 0; o < rows; ++o) {
              const double square = double(left[i * rows + o]) * left[i * rows + o];
              if (options & 1) weighted[i] += square * past[o];
              for (int64_t k = 0; k < columns; ++k) {
                const int64_t at = o * columns + k;
                const double g = gradients[(i * rows + o) * columns + k] = left[i * rows + o] * right[i * columns + k];
                const double seen = arrays[2] || arrays[3] ? c[2] * g + (arrays[2] ? decay[at] : Real(0)) : g;
                const double metric = std::sqrt(std::fmax(floor[at], past[at] + c[0] * seen * seen)) + c[3];
                const double direction = arrays[3] ? offset[at] + c[1] * seen : g;
                expected[i] += direction * direction / metric;
                weighted[i] += square * floor[at] * right[i * columns + k] * right[i * columns + k];
              }
            }
          dense(gradients.data(), examples, rows * columns, arrays, c, totals.data());
          for (int64_t i = 0; i < examples; ++i) check(totals[i], expected[i], tolerance);
          const Real* q = options == 0 ? nullptr : floor.data();
          const Real* c_k = options & 2 ? offset.data() : nullptr;
          polynomial(gradients.data(), examples, rows * columns, q, c_k, totals.data());
          for (int64_t i = 0; i < examples; ++i) {
            double sum = 0;
            for (int64_t k = 0; k < rows * columns; ++k) {
              const double g = gradients[i * rows * columns + k];
              sum += (q ? q[k] : Real(1)) * g * g + (c_k ? c_k[k] : Real(0)) * g;
            }
            check(totals[i], sum, tolerance);
          }
          outer(left.data(), right.data(), examples, rows, columns, arrays, c, totals.data());
          for (int64_t i = 0; i < examples; ++i) check(totals[i], expected[i], tolerance);
          quadratic(left.data(), right.data(), examples, rows, columns, floor.data(), options & 1 ? past.data() : nullptr,
                    totals.data());
          for (int64_t i = 0; i < examples; ++i) check(totals[i], weighted[i], tolerance);
          if constexpr (sizeof(Real) == sizeof(float))
            check_layer<Real>(dasgrad_frozen_layer32, dasgrad_lengths32, left, right, examples, rows, columns, floor,
                              options & 1 ? past.data() : nullptr, options & 2, tolerance);
          else
            check_layer<Real>(dasgrad_frozen_layer64, dasgrad_lengths64, left, right, examples, rows, columns, floor,
                              options & 1 ? past.data() : nullptr, options & 2, tolerance);
          std::vector<Real> inverted(rows * columns);
          inverse(floor.data(), rows * columns, 0.5, 1e-3, 2.0, inverted.data());
          for (int64_t k = 0; k < rows * columns; ++k)
            check(inverted[k], 2.0 / (0.5 * std::sqrt(floor[k]) + 1e-3), tolerance);
          const auto bias = numbers<Real>(rows, -1, 1);
          const Real* matrices[4] = {past.data(), options & 1 ? bias.data() : nullptr, floor.data(),
                                     options & 2 ? decay.data() : nullptr};
          check_linear<Real>(linear, right, right, examples, rows, columns, matrices, tolerance);
          if constexpr (sizeof(Real) == sizeof(float)) {
            std::vector<uint16_t> halves(right.size());
            std::vector<float> rounded(right.size());
            for (size_t k = 0; k < right.size(); ++k) {
              uint32_t bits;
              std::memcpy(&bits, &right[k], sizeof bits);
              halves[k] = bits >> 16;
              bits &= 0xffff0000u;
              std::memcpy(&rounded[k], &bits, sizeof bits);
            }
            check_linear<float>(dasgrad_linear_with_squares16, halves, rounded, examples, rows, columns, matrices,
                                tolerance);
          }
          ++num_cases;
        }
  return num_cases;
}

// Rows of 0 to num_columns entries, every column at most once.
template <typename Real, typename Own, typename Quadratic, typename Linear>
int64_t run_sparse(Own own, Quadratic quadratic, Linear linear, double tolerance) {
  int64_t num_cases = 0;
  for (int64_t examples : {0, 1, 3, 9})
    for (int64_t rows : {1, 2, 5})
      for (int64_t columns : {1, 17, 1500})
        for (int options = 0; options < 4; ++options) {
          const auto floor = numbers<Real>(rows * columns, 0.1, 1), past = numbers<Real>(rows * columns, 0, 1);
          const auto decay = numbers<Real>(rows * columns, -1, 1), offset = numbers<Real>(rows * columns, -1, 1);
          const Real* arrays[4] = {floor.data(), past.data(), options & 1 ? decay.data() : nullptr,
                                   options & 2 ? offset.data() : nullptr};
          const double c[4] = {0.5, 0.25, -1.0, 1e-3};
          const auto left = numbers<Real>(examples * rows, -1, 1);
          std::vector<int64_t> starts = {0}, places;
          for (int64_t i = 0; i < examples; ++i) {
            for (int64_t k = 0; k < columns; ++k)
              if (i && (i == 1 || std::rand() % 2)) places.push_back(k);
            starts.push_back(int64_t(places.size()));
          }
          const auto values = numbers<Real>(int64_t(places.size()), -1, 1);
          std::vector<double> totals(examples), polynomials(examples);
          own(starts.data(), places.data(), values.data(), left.data(), examples, rows, columns, arrays, c,
              totals.data());
          quadratic(starts.data(), places.data(), values.data(), left.data(), examples, rows, columns,
                    options & 1 ? floor.data() : nullptr, arrays[3], polynomials.data());
          const Real* bias = options & 2 ? past.data() : nullptr;
          std::vector<Real> outputs(examples * rows);
          linear(starts.data(), places.data(), values.data(), examples, rows, columns, offset.data(), bias,
                 outputs.data());
          for (int64_t i = 0; i < examples; ++i)
            for (int64_t o = 0; o < rows; ++o) {
              double expected = bias ? bias[o] : Real(0);
              for (int64_t e = starts[i]; e < starts[i + 1]; ++e)
                expected += double(values[e]) * offset[o * columns + places[e]];
              check(outputs[i * rows + o], expected, tolerance);
            }
          for (int64_t i = 0; i < examples; ++i) {
            double expected = 0, polynomial = 0;
            for (int64_t e = starts[i]; e < starts[i + 1]; ++e)
              for (int64_t o = 0; o < rows; ++o) {
                const int64_t at = o * columns + places[e];
                for (int present = 0; present < 2; ++present) {
                  const double g = present ? double(left[i * rows + o]) * values[e] : 0;
                  const double seen = arrays[2] || arrays[3] ? c[2] * g + (arrays[2] ? decay[at] : Real(0)) : g;
                  const double metric = std::sqrt(std::fmax(floor[at], past[at] + c[0] * seen * seen)) + c[3];
                  const double direction = arrays[3] ? offset[at] + c[1] * seen : g;
                  expected += (present ? 1 : -1) * direction * direction / metric;
                  polynomial += g * g * (options & 1 ? floor[at] : Real(1)) + (arrays[3] ? g * offset[at] : 0);
                }
              }
            check(totals[i], expected, tolerance);
            check(polynomials[i], polynomial, tolerance);
          }
          ++num_cases;
        }
  return num_cases;
}

// As in measures.cpp.
template <typename Real>
struct Rows {
  const int64_t *owners, *indices;
  const Real *values, *quadratic, *cross;
  int64_t* order;
  Real* sums;
  double* totals;
  int64_t num_entries, num_rows, width, first, last;
};

// Examples have as many entries as their number, the first none; those after the cut are another call's.
template <typename Real>
int64_t run_rows(int64_t (*measure)(const void*), double tolerance) {
  int64_t num_cases = 0;
  for (const int64_t examples : {0, 1, 2, 9})
    for (const int64_t rows : {1, 5})
      for (const int64_t width : {1, 16, 37})
        for (int options = 0; options < 3; ++options) {
          std::vector<int64_t> owners, indices;
          for (int64_t i = 0; i < examples; ++i)
            for (int64_t e = 0; e < i; ++e) {
              owners.push_back(i);
              indices.push_back(std::rand() % rows);
            }
          const int64_t entries = int64_t(owners.size());
          const auto values = numbers<Real>(entries * width, -1, 1), q = numbers<Real>(rows * width, 0, 1),
                     c = numbers<Real>(rows * width, -1, 1);
          std::vector<int64_t> order(entries);
          std::vector<Real> sums(examples * width);
          std::vector<double> totals(examples);
          for (const int64_t cut : {int64_t(0), examples / 2}) {
            const Rows<Real> call = {owners.data(), indices.data(), values.data(), options ? q.data() : nullptr,
                                     options == 2 ? c.data() : nullptr, order.data(), sums.data(), totals.data(),
                                     entries, rows, width, cut, cut ? examples : examples / 2};
            if (!measure(&call)) std::exit(1);
          }
          for (int64_t i = 0; i < examples; ++i) {
            std::vector<double> gradient(rows * width);
            for (int64_t e = 0; e < entries; ++e)
              for (int64_t k = 0; owners[e] == i && k < width; ++k)
                gradient[indices[e] * width + k] += values[e * width + k];
            double expected = 0;
            for (int64_t at = 0; at < rows * width; ++at) {
              const double g = gradient[at];
              expected += (options ? q[at] : Real(1)) * g * g + (options == 2 ? c[at] * g : 0);
            }
            if (examples > 1) check(totals[i], expected, tolerance);
          }
          if (entries) {
            indices[entries - 1] = rows;
            const Rows<Real> outside = {owners.data(), indices.data(), values.data(), nullptr, nullptr, order.data(),
                                        sums.data(), totals.data(), entries, rows, width, 0, examples};
            if (measure(&outside)) std::exit(1);
          }
          ++num_cases;
        }
  return num_cases;
}

template <typename Real, typename Function>
int64_t run_normalised(Function measure, double tolerance) {
  int64_t num_cases = 0;
  for (const int64_t examples : {0, 1, 3})
    for (const int64_t positions : {0, 1, 4})
      for (const int64_t width : {1, 15, 16, 37}) {
        const auto x = numbers<Real>(examples * positions * width, 2, 4), g = numbers<Real>(x.size(), -1, 1);
        std::vector<Real> sums(examples * width);
        measure(x.data(), g.data(), examples, positions, width, 1e-2, sums.data());
        for (int64_t i = 0; i < examples; ++i)
          for (int64_t k = 0; k < width; ++k) {
            double expected = 0;
            for (int64_t t = 0; t < positions; ++t) {
              const Real* row = x.data() + (i * positions + t) * width;
              double mean = 0, variance = 0;
              for (int64_t j = 0; j < width; ++j) mean += row[j] / double(width);
              for (int64_t j = 0; j < width; ++j) variance += (row[j] - mean) * (row[j] - mean) / width;
              expected += g[(i * positions + t) * width + k] * (row[k] - mean) / std::sqrt(variance + 1e-2);
            }
            check(sums[i * width + k], expected, tolerance);
          }
        ++num_cases;
      }
  return num_cases;
}

}  // namespace

static int64_t run_all() {
  const int64_t num32 = run<float>(dasgrad_own_dense32, dasgrad_own_outer32, dasgrad_quadratic32,
                                   dasgrad_linear_with_squares32, dasgrad_inverse_metric32,
                                   dasgrad_polynomial32, 2e-4);
  const int64_t num64 = run<double>(dasgrad_own_dense64, dasgrad_own_outer64, dasgrad_quadratic64,
                                    dasgrad_linear_with_squares64, dasgrad_inverse_metric64,
                                    dasgrad_polynomial64, 1e-12);
  const int64_t sparse32 = run_sparse<float>(dasgrad_own_sparse32, dasgrad_quadratic_sparse32, dasgrad_sparse_linear32, 2e-4);
  const int64_t sparse64 = run_sparse<double>(dasgrad_own_sparse64, dasgrad_quadratic_sparse64, dasgrad_sparse_linear64, 1e-12);
  return num32 + num64 + sparse32 + sparse64;
}

int64_t widest = 64;  // bytes of a vector that the source may use

int main() {
  int64_t num_cases = run_products<float>(dasgrad_sums_of_products32, 2e-4);
  num_cases += run_products<double>(dasgrad_sums_of_products64, 1e-12);
  num_cases += run_attention<float>(dasgrad_attention32) + run_attention<double>(dasgrad_attention64);
  num_cases += run_transpose<uint32_t>(dasgrad_transpose32) + run_transpose<uint64_t>(dasgrad_transpose64);
  num_cases += run_rows<float>(dasgrad_rows32, 2e-4) + run_rows<double>(dasgrad_rows64, 1e-12);
  num_cases += run_normalised<float>(dasgrad_normalised_sums32, 2e-4);
  num_cases += run_normalised<double>(dasgrad_normalised_sums64, 1e-12);
  for (const int64_t bytes : {64, 32, 16}) {  // as on narrower machines
    widest = bytes;
    num_cases += run_all();
  }
  std::printf("ok %lld\n", static_cast<long long>(num_cases));
}
