// Rows of A on their way through products: packed once for a block of the depth, and multiplied by panels.
#pragma once

#include <algorithm>
#include <cstring>

#include "product_variants.h"
#include "scratch.h"

namespace zoexport {
namespace kernels {

inline constexpr size_t kRows = 280;                  // of A at a time: at most kRows * kMaxDepth floats are packed
inline constexpr size_t kWidth = 32;                  // of every variant, at most
inline constexpr size_t kPanel = kMaxDepth * kWidth;  // floats

inline size_t divide_up(size_t a, size_t b) { return (a + b - 1) / b; }

// Each to the nearest bfloat16, those in the middle to the even one. NaN stays NaN.
inline void round_to_bf16(float* values, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, sizeof(bits));
    const uint32_t quiet = 0u - static_cast<uint32_t>((bits & 0x7FFFFFFFu) > 0x7F800000u);
    const uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
    bits = ((rounded & ~quiet) | ((bits | 0x00400000u) & quiet)) & 0xFFFF0000u;
    std::memcpy(values + i, &bits, sizeof(bits));
  }
}

// Rows of memory that are read soon: `bytes` of each from `begin` on, `stride` apart.
struct Ahead {
  const char* begin = nullptr;
  size_t stride = 0;
  size_t rows = 0;
  size_t bytes = 0;
};

class PackedRows {
 public:
  // The `height` rows of C (.., columns) from c on, and of A from a on. keep: whether `memory` has room for the whole
  // depth of them, and not for a block of it alone; kSlack floats past either are written too.
  // width: columns that are asked for, at most. bf16: whether A's numbers are rounded.
  PackedRows(const ProductKernels& kernels, FloatMatrix a, bool transposed, size_t height, size_t width, bool keep,
             float* memory, float* c, size_t columns, bool bf16 = false)
      : kernels_(kernels),
        a_(a),
        transposed_(transposed),
        height_(height),
        tiles_(divide_up(height, width <= kernels.lanes ? kernels.narrow_rows : kernels.rows)),
        // One row of A, or a transposed A, already has the layout of packed rows.
        pack_(bf16 || (!transposed && height > 1)),
        bf16_(bf16),
        keep_(keep),
        packed_(memory),
        c_(c),
        columns_(columns) {}

  // Number of tiles of rows; a panel is read once for each.
  size_t tiles() const { return tiles_; }

  void pack(size_t p, size_t depth) const {
    for (size_t tile = 0; pack_ && tile < tiles_; ++tile) {
      const size_t r = first_row(tile);
      const float* a = a_.values + r * a_.stride + p;
      const size_t rows = first_row(tile + 1) - r;
      kernels_.pack_rows(a, a_.stride, rows, depth, packed(p, depth, r));
      if (bf16_) {
        round_to_bf16(packed(p, depth, r), rows * depth);
      }
    }
  }

  // C of columns j .. j+count-1, by their panel of the depth from p on, for which pack was called: the first one, at p
  // = 0, adds `before`, of all rows and columns (a bias has a stride of 0), or null. On the way it fetches `ahead` into the
  // cache's second level, some rows of it before each tile: memory takes longer than the processor has requests for.
  void multiply(FloatMatrix panel, size_t p, size_t depth, size_t j, size_t count, FloatMatrix before,
                const Ahead& ahead = {}) const {
    for (size_t tile = 0; tile < tiles_; ++tile) {
      for (size_t row = tile * ahead.rows / tiles_; row < (tile + 1) * ahead.rows / tiles_; ++row) {
        for (size_t byte = 0; byte < ahead.bytes; byte += kLine) {
          __builtin_prefetch(ahead.begin + row * ahead.stride + byte, 0, 2);
        }
      }
      const size_t r = first_row(tile);
      float* out = c_ + r * columns_ + j;
      Tile t{};
      t.rows = first_row(tile + 1) - r;
      t.a = pack_ ? packed(p, depth, r) : a_.values + (transposed_ ? p * a_.stride + r : r * a_.stride + p);
      t.a_stride = pack_ ? t.rows : transposed_ ? a_.stride : 1;
      t.panel = panel.values;
      t.panel_stride = panel.stride;
      t.depth = depth;
      t.before = p > 0 ? out : before.values != nullptr ? before.values + r * before.stride + j : nullptr;
      t.before_stride = p > 0 ? columns_ : before.stride;
      t.c = out;
      t.c_stride = columns_;
      t.count = count;
      kernels_.multiply(t);
    }
  }

 private:
  // Tiles are of nearly the same height: a low last one would leave the multipliers idle.
  size_t first_row(size_t tile) const { return tile * height_ / tiles_; }

  float* packed(size_t p, size_t depth, size_t row) const { return packed_ + (keep_ ? p * height_ : 0) + row * depth; }

  const ProductKernels& kernels_;
  const FloatMatrix a_;
  const bool transposed_;  // what is stored of A
  const size_t height_;
  const size_t tiles_;
  const bool pack_;  // rows are packed
  const bool bf16_;
  const bool keep_;  // the whole depth of them fits
  float* const packed_;
  float* const c_;
  const size_t columns_;
};

// Calls pack(p, depth) and multiply(p, depth, j, count) for all blocks of the depth, of so many numbers at most, and
// all panels of columns begin .. end-1. Where rows are kept they are packed once, and each panel of C is finished
// before the next one, so that it is written once.
template <typename Pack, typename Multiply>
void for_blocks(size_t whole_depth, size_t block, size_t begin, size_t end, size_t width, bool keep, const Pack& pack,
                const Multiply& multiply) {
  const auto for_depth = [&](const auto& body) {
    for (size_t p = 0; p < whole_depth; p += block) {
      body(p, std::min(block, whole_depth - p));
    }
  };
  const auto for_columns = [&](const auto& body) {
    for (size_t j = begin; j < end; j += width) {
      body(j, std::min(width, end - j));
    }
  };
  if (keep) {
    for_depth(pack);
    for_columns([&](size_t j, size_t count) {
      if (whole_depth == 0) {
        multiply(0, 0, j, count);  // the bias alone
      }
      for_depth([&](size_t p, size_t depth) { multiply(p, depth, j, count); });
    });
    return;
  }
  for_depth([&](size_t p, size_t depth) {
    pack(p, depth);
    for_columns([&](size_t j, size_t count) { multiply(p, depth, j, count); });
  });
}

}  // namespace kernels
}  // namespace zoexport
