// Perturbations that are whole numbers (docs/noise.md): both roundings of a normal, drawn at once from a table of pairs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "philox.h"

namespace zoexport {
namespace rng {

// The slot quzo.table, (2^log2_size, 2): thresholds, and pairs of roundings.
struct PairTable {
  const int32_t* entries;
  uint32_t log2_size;  // 3 .. 10
};

enum class Rounding : uint32_t { kFirst, kSecond };  // Q1, Q2

inline constexpr size_t kLevelRows = 16;

// Blocks of kLevelRows rows of a matrix: `count` of each, from its first one on, `stride` apart (modulo 2^32). The count
// is a multiple of 4.
struct LevelRows {
  uint32_t first[kLevelRows];
  uint32_t stride;
  size_t count;
};

// A function that draws them. out[b * kLevelRows + row]: the levels of block b's four elements, as signed bytes, the
// first one lowest.
using DrawLevels = void (*)(const Stream& stream, const LevelRows& rows, const PairTable& table, Rounding rounding,
                            uint32_t* out);

// The levels of the elements start .. start + count - 1. start + count <= 2^34.
inline void levels(const Stream& stream, uint64_t start, size_t count, const PairTable& table, Rounding rounding,
                   int8_t* out, DrawLevels draw) {
  static_assert(kBlocks == 4 * kLevelRows, "four blocks a row");
  fill(stream, start, count, out, [&](const Stream& s, uint32_t first, int8_t* values) {
    LevelRows rows{{}, kLevelRows, 4};
    for (uint32_t i = 0; i < kLevelRows; ++i) {
      rows.first[i] = first + i;
    }
    uint32_t drawn[kBlocks];
    draw(s, rows, table, rounding, drawn);
    std::memcpy(values, drawn, sizeof(drawn));  // in memory, too, the lowest byte is first
  });
}

}  // namespace rng
}  // namespace zoexport
