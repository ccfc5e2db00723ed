// The vectors of NEON, as vector_products.h, vector_sparse.h and vector_grid.h ask for them: products in tiles of 8 by
// 8, which leave half of the registers to what is multiplied.
// In an anonymous namespace: each file that is compiled for these instructions has its own.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace zoexport {
namespace kernels {
namespace {

struct Neon {
  static constexpr size_t kLanes = 4, kRows = 8, kVectors = 2, kNarrowRows = 8, kFewRows = 4, kFewVectors = 4;
  typedef float32x4_t Float;
  typedef uint32x4_t Word;
  typedef int32x4_t Int;

  static Float load(const float* from) { return vld1q_f32(from); }
  static void store(float* to, Float value) { vst1q_f32(to, value); }
  static Float broadcast(float value) { return vdupq_n_f32(value); }
  static Float multiply_add(Float a, Float b, Float c) { return vfmaq_f32(c, a, b); }
  static Float to_float(Word word) { return vcvtq_f32_s32(vreinterpretq_s32_u32(word)); }
  static Float greatest(Float a, Float b) { return vmaxq_f32(a, b); }

  static void load_columns(const char* const (&rows)[kLanes], size_t offset, Word (&out)[4]) {
    const auto row = [&](size_t i) {
      return vreinterpretq_u32_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(rows[i] + offset)));
    };
    transpose({row(0), row(1), row(2), row(3)}, out);
  }

  static void store_columns(const Word (&in)[4], char* const (&rows)[kLanes], size_t offset) {
    Word row[4];
    transpose(in, row);
    for (size_t i = 0; i < 4; ++i) {
      vst1q_u8(reinterpret_cast<uint8_t*>(rows[i] + offset), vreinterpretq_u8_u32(row[i]));
    }
  }

  static void transpose(const Word (&in)[4], Word (&out)[4]) {
    const uint64x2_t low01 = vreinterpretq_u64_u32(vzip1q_u32(in[0], in[1]));
    const uint64x2_t high01 = vreinterpretq_u64_u32(vzip2q_u32(in[0], in[1]));
    const uint64x2_t low23 = vreinterpretq_u64_u32(vzip1q_u32(in[2], in[3]));
    const uint64x2_t high23 = vreinterpretq_u64_u32(vzip2q_u32(in[2], in[3]));
    out[0] = vreinterpretq_u32_u64(vzip1q_u64(low01, low23));
    out[1] = vreinterpretq_u32_u64(vzip2q_u64(low01, low23));
    out[2] = vreinterpretq_u32_u64(vzip1q_u64(high01, high23));
    out[3] = vreinterpretq_u32_u64(vzip2q_u64(high01, high23));
  }

  static Float int4_values(Word word) { return to_float((word & 15u) - 8u); }

  struct Int4Scale {
    Float scale;

    void set(Float value) { scale = value; }
    Float times(Word word, size_t i) const {
      // Flipping the highest bit of a code gives q in two's complement.
      return to_float((Word)((Int)((word ^ 0x88888888u) << static_cast<uint32_t>(28 - 4 * i)) >> 28)) * scale;
    }
  };

  static Word spread_int4(const uint8_t* codes) {
    uint16_t two;
    __builtin_memcpy(&two, codes, sizeof(two));
    const int32x4_t shifts = {0, -4, -8, -12};  // to the right
    return vshlq_u32(vdupq_n_u32(two), shifts);
  }

  static Word spread_int8(const int8_t* codes) {
    int32_t four;
    __builtin_memcpy(&four, codes, sizeof(four));
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(wide)));
  }

  static Int clamp(Int value, int low, int high) {
    return vminq_s32(vmaxq_s32(value, vdupq_n_s32(low)), vdupq_n_s32(high));
  }
  static Float least(Float a, Float b) { return vminq_f32(a, b); }
  static Word to_int(Float value) { return vreinterpretq_u32_s32(vcvtq_s32_f32(value)); }
  static bool none(Word word) { return vmaxvq_u32(word) == 0; }

  static Word load_halves(const uint8_t* from) { return vmovl_u16(vreinterpret_u16_u8(vld1_u8(from))); }
  static void store_halves(uint8_t* to, Word word) { vst1_u8(to, vreinterpret_u8_u16(vmovn_u32(word))); }
};

}  // namespace
}  // namespace kernels
}  // namespace zoexport
