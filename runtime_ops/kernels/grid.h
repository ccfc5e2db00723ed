// Zeroth-order training of integers (docs/noise.md): a linear layer whose packed weights are perturbed while they are
// unpacked, and the update of packed weights. Integers are the same on every machine and in
// exporter/zoexport/core/grid.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "product_variants.h"
#include "products.h"
#include "rng/levels.h"

namespace zoexport {
namespace kernels {

using rng::PairTable;

// --- the update -----------------------------------------------------------------------------------

// INT4 as docs/formats.md packs it, -8 .. 7, two a byte; INT8 as int8, -127 .. 127.
enum class Grid { kInt4, kInt8 };

// The gradients of the step before `step`.
struct GridUpdate {
  const float* gradients;
  size_t queries;
  float learning_rate;
  float eps;  // grid steps
  uint64_t seed;
  uint32_t step;
  uint32_t tensor_id;
  PairTable table;
  bool second;  // whether the second rounding is the direction (Q-RGE2), or the first (Q-RGE1)
  bool summed;  // whether all queries are rounded once, or each by itself
};

// out = clamp(w - sum_i S(c_i Q(u_i))), or clamp(w - S(sum_i c_i Q(u_i))) if summed, for the integers begin .. end-1 of
// a dense matrix; both are even, or end is the matrix's end. `codes` and `out` cover the whole matrix and are the same
// array or do not overlap. If every gradient is zero, `out` is a copy. Returns false without writing if there are no
// queries or a gradient is pending at step 0.
bool grid_update(Grid grid, const uint8_t* codes, size_t begin, size_t end, const GridUpdate& update, uint8_t* out,
                 const GridKernels& kernels = *fastest_products().grid);

// --- the product ----------------------------------------------------------------------------------

// y (T, N) = x (T, K) W^T (+ bias), rows being 2 * queries copies of as many: copy 2i with clamp(w + Q1(u_i)), copy
// 2i+1 with clamp(w - Q1(u_i)). No perturbed weights are kept: a panel is made of one draw for both. Sums are those of
// `linear` (products.h) over a matrix of such integers.
struct GridLinear {
  const float* x;
  size_t rows;
  std::variant<Int4Matrix, Int8Matrix> weight;  // valid; K a multiple of 32 for INT4
  const float* bias;                            // N floats, or null
  PairTable table;
  uint64_t seed;
  uint32_t step;
  uint32_t tensor_id;
  uint32_t queries;
  float* y;
};

// Return whether the rows divide into the perturbed copies.
bool grid_rows_fit(const GridLinear& product);

// Tasks as in products.h. A task is a panel of columns of both copies of a query, which share the noise.
Tasks tasks_of(const GridLinear& product, const ProductVariant& variant = fastest_products());

// The rows must fit. The thread keeps up to 530 KB for its next products; returns false if there is no memory for that.
bool run_tasks(const GridLinear& product, size_t begin, size_t end, const ProductVariant& variant = fastest_products());

}  // namespace kernels
}  // namespace zoexport
