// Matrix products C = A B in float32 whose B may be a quantized weight: one blocking for all of them, over kernels for
// an instruction set each (product_variants.h). Few rows by an INT4 weight, as when a model generates, have kernels of
// their own, which give the same bits.
//
// Every element of C is one sum over the depth, in an order that its depth alone decides: fused multiply-adds, in
// ascending order within a block of the depth (block_depth), then the blocks one after the other, the bias first. So a
// result depends neither on the other rows or columns, nor on how the work is split over threads; and all variants
// that have a fused multiply-add give the same bits.
//
// A variant with tiles (tiled.h) adds up parts of numbers, as near and with bits of its own, that depend on as little.
// It leaves fused multiply-adds to at most few_rows rows, to batches and to narrow or transposed matrices of floats.
//
// Products of numbers that are rounded to bfloat16 are sums in float32 too, of exact terms: in the order of a
// variant's instructions for them if it has any; otherwise in the order above.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "int4.h"

namespace zoexport {
namespace kernels {

struct ProductKernels;  // product_variants.h

// A quantized matrix (N, K), row-major and dense, read only: w[n, k] = codes[n, k] * scales[n].
struct Int8Matrix {
  const int8_t* codes;  // (N, K)
  const float* scales;  // (N)
  size_t N;
  size_t K;
};

// A matrix of float32, its rows `stride` elements apart.
struct FloatMatrix {
  const float* values;
  size_t stride;
};

// C (rows, columns) = A (rows, depth) B (depth, columns) (+ bias), `batches` times. C is dense and overlaps nothing.
struct Product {
  size_t batches;
  size_t rows;
  size_t columns;
  size_t depth;
  FloatMatrix a;
  bool a_transposed;  // what is stored is (depth, rows)
  std::variant<FloatMatrix, Int4Matrix, Int8Matrix> b;
  bool b_transposed;  // what is stored is (columns, depth)
  size_t a_batch;     // elements from one matrix of a batch to the next
  size_t b_batch;     // the same, of B; only float32 has batches
  const float* bias;  // columns floats, or null
  float* c;           // (batches, rows, columns)
  // Added like a bias, in its place: (batches, rows, columns), which does not overlap c; or null. Of float32 only.
  const float* before = nullptr;
  // For a quantized B: the numbers of A and B are rounded to bfloat16, to nearest even, before they are multiplied.
  bool bf16 = false;
};

// y (T, N) = x (T, K) W^T (+ bias), and dx (T, K) = dy (T, N) W. An Int4Matrix must be valid (int4_valid).
Product linear(const float* x, size_t T, const Int4Matrix& weight, const float* bias, float* y);
Product linear(const float* x, size_t T, const Int8Matrix& weight, const float* bias, float* y);
Product linear_input_gradient(const float* dy, size_t T, const Int4Matrix& weight, float* dx);
Product linear_input_gradient(const float* dy, size_t T, const Int8Matrix& weight, float* dx);

// c (batches, rows, columns) = op(a) op(b); a is (batches, rows, depth), or (batches, depth, rows) if transposed; b is
// (batches, depth, columns), or (batches, columns, depth) if transposed.
Product matmul(const float* a, const float* b, size_t batches, size_t rows, size_t columns, size_t depth,
               bool a_transposed, bool b_transposed, float* c);

// Return the kernels of the fastest variant that runs here.
const ProductKernels& fastest_kernels();

// Division of a product into tasks 0 .. count-1; any thread can run any range of them. A range of fewer than `grain`
// tasks is not worth a thread.
struct Tasks {
  size_t count;
  size_t grain;
};
Tasks tasks_of(const Product& product, const ProductKernels& kernels = fastest_kernels());

// Run tasks begin .. end-1, which write elements of C that no other tasks write. The thread keeps up to 650 KB for its
// next products. Returns false if there is no memory for that.
bool run_tasks(const Product& product, size_t begin, size_t end, const ProductKernels& kernels = fastest_kernels());

// Return how much of a total `depth` is summed before it is added to C: a multiple of 32.
size_t block_depth(size_t depth);

}  // namespace kernels
}  // namespace zoexport
