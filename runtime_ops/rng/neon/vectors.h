// The vectors of NEON, which every 64-bit ARM has, for noise: four blocks each. See vector_philox.h.
// In an anonymous namespace: each file that is compiled for these instructions has its own.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace zoexport {
namespace rng {
namespace {

struct Neon {
  static constexpr size_t kLanes = 4;
  using Float = float32x4_t;
  using Word = uint32x4_t;

  static Float as_float(Word bits) { return vreinterpretq_f32_u32(bits); }
  static Word as_bits(Float value) { return vreinterpretq_u32_f32(value); }
  static Float to_float(Word word) { return vcvtq_f32_s32(vreinterpretq_s32_u32(word)); }
  static Float sqrt(Float value) { return vsqrtq_f32(value); }
  static Word first_lanes() { return Word{0, 1, 2, 3}; }

  static void multiply(Word a, uint32_t m, Word& low, Word& high) {
    const Word factor = vdupq_n_u32(m);
    const Word first = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(a), vget_low_u32(factor)));
    const Word last = vreinterpretq_u32_u64(vmull_high_u32(a, factor));
    low = vuzp1q_u32(first, last);
    high = vuzp2q_u32(first, last);
  }

  static void store(float* out, Float e0, Float e1, Float e2, Float e3) {
    const float32x4x4_t elements = {{e0, e1, e2, e3}};
    vst4q_f32(out, elements);
  }

  static Word load(const void* from) { return vreinterpretq_u32_u8(vld1q_u8(static_cast<const uint8_t*>(from))); }
  static void store(void* to, Word word) { vst1q_u8(static_cast<uint8_t*>(to), vreinterpretq_u8_u32(word)); }

  static constexpr uint32_t kFewBits = 4;

  struct Few {
    uint8x16x4_t thresholds, pairs;  // four entries a vector

    Few(const int32_t* entries, uint32_t log2_size) : thresholds{}, pairs{} {
      uint32_t parts[2][1 << kFewBits] = {};
      for (size_t i = 0; i < size_t{1} << log2_size; ++i) {
        parts[0][i] = static_cast<uint32_t>(entries[2 * i]);
        parts[1][i] = static_cast<uint32_t>(entries[2 * i + 1]);
      }
      for (size_t i = 0; i < 4; ++i) {
        thresholds.val[i] = vreinterpretq_u8_u32(vld1q_u32(parts[0] + 4 * i));
        pairs.val[i] = vreinterpretq_u8_u32(vld1q_u32(parts[1] + 4 * i));
      }
    }
    void find(Word index, Word& threshold, Word& pair) const {
      const uint8x16_t bytes = vreinterpretq_u8_u32(index * 0x04040404u + 0x03020100u);
      threshold = vreinterpretq_u32_u8(vqtbl4q_u8(thresholds, bytes));
      pair = vreinterpretq_u32_u8(vqtbl4q_u8(pairs, bytes));
    }
  };

  struct Any {
    const int32_t* entries;

    Any(const int32_t* table, uint32_t) : entries(table) {}
    void find(Word index, Word& threshold, Word& pair) const {
      // An entry is 64 bits: each is read at once.
      const uint64x2_t low = {entry(index[0]), entry(index[1])}, high = {entry(index[2]), entry(index[3])};
      threshold = vuzp1q_u32(vreinterpretq_u32_u64(low), vreinterpretq_u32_u64(high));
      pair = vuzp2q_u32(vreinterpretq_u32_u64(low), vreinterpretq_u32_u64(high));
    }
    uint64_t entry(uint32_t index) const {
      uint64_t both;
      __builtin_memcpy(&both, entries + 2 * static_cast<size_t>(index), sizeof(both));
      return both;
    }
  };
};

}  // namespace
}  // namespace rng
}  // namespace zoexport
