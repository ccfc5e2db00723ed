// Tables of pairs for tests, and docs/noise.md's way from a word to a level, one number at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rng/levels.h"

namespace grid_tables {

using zoexport::rng::PairTable;
using zoexport::rng::Stream;

inline std::vector<uint32_t> random_words(uint32_t id, size_t n) {
  std::vector<uint32_t> word(n);
  zoexport::rng::words(Stream{99, id, 0, 0}, 0, n, word.data());
  return word;
}

// Any table: thresholds of all sizes, levels up to `most`.
inline std::vector<int32_t> table_of(uint32_t log2_size, int32_t most) {
  const size_t size = size_t{1} << log2_size;
  const std::vector<uint32_t> word = random_words(1, 5 * size);
  std::vector<int32_t> table;
  for (size_t i = 0; i < size; ++i) {
    table.push_back(static_cast<int32_t>(word[5 * i]));
    uint32_t bytes = 0;
    for (size_t j = 0; j < 4; ++j) {
      const int32_t level = static_cast<int32_t>(word[5 * i + 1 + j] % static_cast<uint32_t>(2 * most + 1)) - most;
      bytes |= (static_cast<uint32_t>(level) & 255u) << (8 * j);
    }
    table.push_back(static_cast<int32_t>(bytes));
  }
  return table;
}

// One word of a stream, by its own block.
inline uint32_t word_of(uint64_t seed, uint32_t id, uint32_t query, uint32_t step, uint64_t element) {
  uint32_t c[4] = {static_cast<uint32_t>(element / 4), id, query, step};
  zoexport::rng::philox_block(static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), c);
  return c[element % 4];
}

inline int level_of(const PairTable& table, uint32_t word, bool second) {
  const uint32_t i = word >> (32 - table.log2_size), r = word << table.log2_size;
  int8_t pairs[4];
  for (uint32_t j = 0; j < 4; ++j) {
    pairs[j] = static_cast<int8_t>(static_cast<uint32_t>(table.entries[2 * i + 1]) >> (8 * j) & 255u);
  }
  const bool own = r < static_cast<uint32_t>(table.entries[2 * i]);
  return own ? pairs[second ? 1 : 0] : pairs[second ? 3 : 2];
}

}  // namespace grid_tables
