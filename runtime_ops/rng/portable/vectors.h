// The vectors that GCC and clang provide on every processor, for levels: four blocks each. See vector_levels.h.
// In an anonymous namespace: each file that is compiled for these instructions has its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace zoexport {
namespace rng {
namespace {

struct Portable {
  static constexpr size_t kLanes = 4;
  typedef uint32_t Word __attribute__((vector_size(16)));

  static Word first_lanes() { return Word{0, 1, 2, 3}; }

  static void multiply(Word a, uint32_t m, Word& low, Word& high) {
    low = high = Word{};
    for (size_t i = 0; i < kLanes; ++i) {
      const uint64_t product = uint64_t{a[i]} * m;
      low[i] = static_cast<uint32_t>(product);
      high[i] = static_cast<uint32_t>(product >> 32);
    }
  }

  static Word load(const void* from) {
    Word word;
    __builtin_memcpy(&word, from, sizeof(word));
    return word;
  }
  static void store(void* to, Word word) { __builtin_memcpy(to, &word, sizeof(word)); }

  struct Any {
    const int32_t* entries;

    Any(const int32_t* table, uint32_t) : entries(table) {}
    void find(Word index, Word& threshold, Word& pair) const {
      threshold = pair = Word{};
      for (size_t i = 0; i < kLanes; ++i) {
        threshold[i] = static_cast<uint32_t>(entries[2 * size_t{index[i]}]);
        pair[i] = static_cast<uint32_t>(entries[2 * size_t{index[i]} + 1]);
      }
    }
  };

  static constexpr uint32_t kFewBits = 0;
  using Few = Any;
};

}  // namespace
}  // namespace rng
}  // namespace zoexport
