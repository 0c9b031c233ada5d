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
// momentum, x C^T, which is all that a frozen metric will need of x, in one reading of x; or the output alone. Here x may
// be in bfloat16, with everything else in float. `sparse_linear`: the output alone, of a sparse x.
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

#include "attention.h"
#include "frozen_layer.h"
#include "linear.h"
#include "normalised.h"
#include "own.h"
#include "polynomial.h"
#include "products.h"
#include "quadratic.h"
#include "transpose.h"

DASGRAD_EXPORT void dasgrad_inverse_metric32(const float* curvature, int64_t size, double scale, double eps,
                                             double share, float* inverse) {
  invert32(curvature, size, float(scale), float(eps), float(share), inverse);
}

DASGRAD_EXPORT void dasgrad_inverse_metric64(const double* curvature, int64_t size, double scale, double eps,
                                             double share, double* inverse) {
  invert64(curvature, size, scale, eps, share, inverse);
}

// `matrices`: weight, bias, quadratic, cross, the last three or null. `results`: outputs, and squares and crosses or null.
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

DASGRAD_EXPORT void dasgrad_sparse_linear32(const int64_t* starts, const int64_t* columns, const float* values,
                                            int64_t num_examples, int64_t num_outputs, int64_t num_inputs,
                                            const float* weight, const float* bias, float* outputs) {
  sparse_linear32(starts, columns, values, num_examples, num_outputs, num_inputs, weight, bias, outputs);
}

DASGRAD_EXPORT void dasgrad_sparse_linear64(const int64_t* starts, const int64_t* columns, const double* values,
                                            int64_t num_examples, int64_t num_outputs, int64_t num_inputs,
                                            const double* weight, const double* bias, double* outputs) {
  sparse_linear64(starts, columns, values, num_examples, num_outputs, num_inputs, weight, bias, outputs);
}
