// Products by tiles of bfloat16, for processors that multiply those faster: of numbers that are rounded to it
// (Product::bf16), and of float32 if that is many times as fast (AMX).
//
// A float32 is the exact sum of three bfloat16 of 8 bits each: its leading bits, those of the remainder, and the rest
// (each cut off, not rounded). A number of an INT4 weight has 11 bits and is the sum of two; a code of an INT8 weight
// is one, and its scale is multiplied into C, or into A if it belongs to the depth. Products of parts are added in
// float32, except those below 2^-23 of the whole: a third part by any but the other's first. So C is as accurate as
// with fused multiply-adds, but has other bits, which depend on A's row, B's column and the depth alone, as with all
// variants. Non-finite values in A give NaN; parts below float32's least normal number count as zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "product_variants.h"

namespace zoexport {
namespace kernels {

inline constexpr size_t kTile = 16;       // rows of A, or columns of B
inline constexpr size_t kTileDepth = 32;  // numbers of the depth in a tile
inline constexpr size_t kTileNumbers = kTile * kTileDepth;

// C (rows, count) = before + A (rows, depth) B (depth, count), depth in steps of kTileDepth, all packed by TiledKernels.
struct TiledBlock {
  const uint16_t* a;
  size_t rows;
  const uint16_t* b;
  size_t parts;         // of B: 1 to 3, and 1 where A has one
  size_t steps;         // of the depth
  const float* scales;  // of columns, which the product is multiplied by; or null
  const float* before;  // null for 0; before[r, j] at before[j + r * before_stride]. It may be C
  size_t before_stride;
  float* c;  // C[r, j] at c[j + r * c_stride]
  size_t c_stride;
  size_t count;  // of columns, at most two tiles
};

// Constant data: no code that only some processors can run is called to make it.
struct TiledKernels {
  size_t parts_of_a;  // 3; 1 where all numbers are rounded. Those of INT8 are then the weight's, not its codes
  // Rows of A, `stride` apart, by `scales` of the depth or, where numbers are rounded, by nothing: of each 16 rows and
  // each step of the depth a tile (16, 32) for each part. Rows and numbers past the end are zero.
  void (*pack_rows)(const float* a, size_t stride, size_t rows, size_t depth, const float* scales, uint16_t* packed);
  // Panels as ProductKernels fills them, their width 16 or 32: of each step and each 16 columns its parts, each
  // (16 pairs of the depth, 16 columns, 2). Numbers past the depth are zero. Of floats null where numbers are rounded.
  void (*pack_float)(FloatMatrix b, Part part, uint16_t* packed);
  void (*pack_float_transposed)(FloatMatrix b, Part part, uint16_t* packed);
  void (*pack_int4)(Int4Matrix b, Part part, uint16_t* packed);
  void (*pack_int4_transposed)(Int4Matrix b, Part part, uint16_t* packed);
  void (*pack_int8)(Int8Matrix b, Part part, uint16_t* packed);
  void (*pack_int8_transposed)(Int8Matrix b, Part part, uint16_t* packed);
  void (*multiply)(const TiledBlock& block);
};

}  // namespace kernels
}  // namespace zoexport
