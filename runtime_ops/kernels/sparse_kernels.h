// The kernels that sparse products are made of, once for each instruction set; product_variants.h lists them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace zoexport {
namespace kernels {

// Entries of a weight (N, K), ascending by n and then by k.
struct SparseEntries {
  size_t count;
  const int32_t* n;
  const int32_t* k;
  const float* values;
};

// y[r, n] = y[r, n] + values[e] * x[r, k] for the entries e in order: a product rounded, then a sum rounded, so that
// all of these give the same bits.
//
// Constant data: no code that only some processors can run is called to make it.
struct SparseKernels {
  // Any number of rows; x (rows, K) and y (rows, N) are row-major and dense.
  void (*add_rows)(const SparseEntries& entries, const float* x, size_t rows, size_t K, float* y, size_t N);

  size_t rows;  // of a tile: tile[j * rows + r] is row r of column j
  // Tiles of columns 0 .. count-1 of rows that are `stride` apart, and back.
  void (*load_tile)(const float* from, size_t stride, size_t count, float* tile);
  void (*store_tile)(const float* tile, size_t count, float* to, size_t stride);
  // x: a tile of all columns. y: a tile of columns from `first` on.
  void (*add_tile)(const SparseEntries& entries, const float* x, size_t first, float* y);
};

// One file each, named by the instruction set; which of them exist depends on the architecture.
extern const SparseKernels sparse_avx2;
extern const SparseKernels sparse_neon;
extern const SparseKernels sparse_portable;

}  // namespace kernels
}  // namespace zoexport
