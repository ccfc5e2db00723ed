// The kernels that products are made of, once for each instruction set, and the choice among them.
#pragma once

#include <vector>

#include "products.h"

namespace zoexport {
namespace kernels {

inline constexpr size_t kMaxDepth = 384;

// Part of B that a panel holds: rows first .. first+depth-1 of columns column .. column+count-1.
//
// A panel is (depth, width) dense, width the least multiple of the lanes that is at least count; columns past count
// hold any numbers. For quantized weights, first is a multiple of 32 and depth at most kMaxDepth.
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

// Keys that a query of attention sees, both identified by their position in a row.
struct Seen {
  bool causal;     // those up to itself
  int32_t window;  // of these the nearest, itself among them; 0: all
};

// Scores of queries, a column each, in rows of keys that follow those of before. They become exp(score - greatest).
struct ScoreColumns {
  float* scores;  // of a key and a query at scores[query + key * stride]
  size_t stride;
  size_t keys;
  size_t queries;     // a multiple of the lanes
  const float* bias;  // of a key, added to its scores; or null
  Seen seen;          // scores that are not seen may be any numbers, and become 0
  int32_t first_key;
  int32_t first_query;
  float* greatest;  // of a query's scores so far: at first the least float
  float* total;     // of its exponentials so far
  float* factor;    // by which sums over keys of before are to be multiplied from now on
};

// Scores and their gradients on the way to the gradients of what they were made of.
struct ScoreRows {
  float* scores;    // of a query and a key at scores[query * stride + key]: q . k, which becomes the probability
  float* gradient;  // likewise: dout . v, which becomes scale times the gradient of the score
  size_t stride;
  size_t queries;
  size_t keys;         // a multiple of the lanes
  const float* bias;   // of a key, added to its scores; or null
  float scale;         // of q . k
  const float* lse;    // of a query: the logarithm of its sum
  const float* delta;  // of a query: out . dout
  Seen seen;           // what is not seen becomes 0
  int32_t first_key;
  int32_t first_query;
};

struct TiledKernels;  // tiled.h

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
  // Products of at most few_rows rows unpack each code of an INT4 weight (columns, depth) once and without a panel.
  // Columns are multiplied few_columns at a time.
  size_t few_rows;
  size_t few_columns;
  void (*few_int4)(const FewRows& product);
  // out[i] = scale * (query . row i), of `count` rows (count, depth).
  void (*dots)(const float* query, const float* rows, size_t count, size_t depth, float scale, float* out);
  // out += the sum of factors[i] * row i, in that order, of rows (count, width).
  void (*add_rows)(float* out, const float* rows, const float* factors, size_t count, size_t width);
  void (*online_softmax)(const ScoreColumns& columns);
  void (*softmax_gradient)(const ScoreRows& rows);
  // Kernels for products that are faster with tiles, and for numbers that are rounded to bfloat16; or null.
  const TiledKernels* tiled = nullptr;
  const TiledKernels* bf16 = nullptr;
};

inline constexpr size_t kSlack = 16;

struct SparseKernels;   // sparse_kernels.h
struct GridKernels;     // grid_kernels.h
struct RoundedKernels;  // rounded.h

// One file each, named by the instruction set; which of them exist depends on the architecture.
extern const ProductKernels products_amx;
extern const ProductKernels products_avx512_bf16;
extern const ProductKernels products_avx512;
extern const ProductKernels products_avx2;
extern const ProductKernels products_neon_bf16;
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
