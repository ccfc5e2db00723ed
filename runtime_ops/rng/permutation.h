// The order of training examples in an epoch (docs/noise.md), from the noise specification's integers.
#pragma once

#include <utility>

#include "philox.h"

namespace zoexport {
namespace rng {

// The 64-bit draw of entry i in an epoch: words 0 (low) and 1 (high) of element block i.
inline uint64_t shuffle_draw(uint64_t seed, uint32_t epoch, uint32_t i) {
  uint32_t c[4] = {i, kShuffle, 0, epoch};
  philox_block(static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), c);
  return c[0] | (static_cast<uint64_t>(c[1]) << 32);
}

// Writes the order of n entries to out[0 .. n-1]: Fisher-Yates from the last entry down.
inline void permutation(uint64_t seed, uint32_t epoch, uint32_t n, uint32_t* out) {
  for (uint32_t i = 0; i < n; ++i) {
    out[i] = i;
  }
  for (uint32_t i = n; i-- > 1;) {
    const uint64_t j = shuffle_draw(seed, epoch, i) % (static_cast<uint64_t>(i) + 1);
    std::swap(out[i], out[j]);
  }
}

}  // namespace rng
}  // namespace zoexport
