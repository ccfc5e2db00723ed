// The kernels that products are made of, once for each instruction set, and the choice among them.
#pragma once

#include <vector>

#include "products.h"

namespace zoexport {
namespace kernels {

inline constexpr size_t kMaxDepth = 384;

// Which part of B a panel holds: rows first .. first+depth-1 of columns column .. column+count-1.
//
// A panel is (depth, width) dense, width the least multiple of the lanes that is at least count; columns past count
// hold any numbers. first is a multiple of 32, depth at most kMaxDepth.
struct Part {
  size_t first;
  size_t depth;
  size_t column;
  size_t count;
  size_t width;
};

// C (rows, count) = before + A (rows, depth) panel (depth, width), rows at most those of ProductKernels.
struct Tile {
  const float* a;  // A[r, p] at a[r + p * a_stride]
  size_t a_stride;
  size_t rows;
  const float* panel;  // B[p, j] at panel[j + p * panel_stride]
  size_t panel_stride;
  size_t depth;
  const float* before;  // null for 0; before[r, j] at before[j + r * before_stride]. It may be C
  size_t before_stride;
  float* c;  // C[r, j] at c[j + r * c_stride]
  size_t c_stride;
  size_t count;  // columns that are read from before and written
};

// C (rows, end - begin) of columns begin .. end-1 = bias + A (rows, K) times the rows begin .. end-1 of a stored matrix,
// rows at most few_rows of ProductKernels.
struct FewRows {
  const float* a;  // A[r, p] at a[r * a_stride + p]
  size_t a_stride;
  size_t rows;
  Int4Matrix b;
  size_t block;       // block_depth(K)
  const float* bias;  // of all columns, or null
  float* c;           // C[r, j] at c[r * c_stride + j], j of all columns
  size_t c_stride;
  size_t begin;
  size_t end;
};

// Constant data: no code that only some processors can run is called to make it.
struct ProductKernels {
  size_t rows;         // of a tile, at most
  size_t narrow_rows;  // of a tile of no more columns than lanes, at most; at least as many
  size_t lanes;
  size_t width;  // of a panel, at most: a multiple of lanes that divides 32
  // Rows of A, row_stride apart, as a tile reads them: packed[r + p * rows]. Up to kSlack floats past the end are
  // written too.
  void (*pack_rows)(const float* a, size_t row_stride, size_t rows, size_t depth, float* packed);
  // Panels of what is stored as (depth, columns), and of what is stored as (columns, depth).
  void (*fill_float)(FloatMatrix b, Part part, float* panel);
  void (*fill_float_transposed)(FloatMatrix b, Part part, float* panel);
  void (*fill_int4)(Int4Matrix b, Part part, float* panel);
  void (*fill_int4_transposed)(Int4Matrix b, Part part, float* panel);
  void (*fill_int8)(Int8Matrix b, Part part, float* panel);
  void (*fill_int8_transposed)(Int8Matrix b, Part part, float* panel);
  void (*multiply)(const Tile& tile);
  // Of so few rows each code of an INT4 weight (columns, depth) is unpacked once and without a panel. Columns are
  // multiplied few_columns at a time.
  size_t few_rows;
  size_t few_columns;
  void (*few_int4)(const FewRows& product);
  // out[i] = scale * (query . row i), of `count` rows (count, depth).
  void (*dots)(const float* query, const float* rows, size_t count, size_t depth, float scale, float* out);
  // out += the sum of factors[i] * row i, in that order, of rows (count, width).
  void (*add_rows)(float* out, const float* rows, const float* factors, size_t count, size_t width);
};

inline constexpr size_t kSlack = 16;

struct SparseKernels;   // sparse_kernels.h
struct GridKernels;     // grid_kernels.h
struct RoundedKernels;  // rounded.h

// One file each, named by the instruction set; which of them exist depends on the architecture.
extern const ProductKernels products_avx512;
extern const ProductKernels products_avx2;
extern const ProductKernels products_neon;
extern const ProductKernels products_portable;

struct ProductVariant {
  const char* name;
  bool runs_here;  // whether this processor and system can run it
  const ProductKernels* kernels;
  const SparseKernels* sparse;
  const GridKernels* grid;
  const RoundedKernels* rounded;
};

// The fastest first. The last is "portable", which runs everywhere.
const std::vector<ProductVariant>& product_variants();

// The first that runs here.
const ProductVariant& fastest_products();

}  // namespace kernels
}  // namespace zoexport
