// Standard normals of the noise specification zoexport-philox4x32-10/1 (docs/noise.md): Box-Muller in float32
// additions, subtractions, multiplications and square roots, each rounded once, in exactly this order.
//
// Compile with -ffp-contract=off (GCC fuses by default if the machine has FMA; the pragma below is for clang) and
// without -ffast-math. -fno-math-errno lets GCC vectorize the square root.
#pragma once

#include <cmath>

#include "philox.h"

#if defined(__FAST_MATH__)
#error "zoexport noise is bit-exact: compile without -ffast-math"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error "zoexport noise is bit-exact: float expressions must be evaluated in float (x86: use SSE)"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

namespace zoexport {
namespace rng {
namespace detail {

inline float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32_t as_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Types of the formulas below: single numbers here, vectors of them in vector_noise.h.
struct Scalar {
  using Float = float;
  using Word = uint32_t;
  static Float as_float(Word bits) { return detail::as_float(bits); }
  static Word as_bits(Float value) { return detail::as_bits(value); }
  // Converts the word as a signed integer.
  static Float to_float(Word word) { return static_cast<float>(static_cast<int32_t>(word)); }
};

// -2 ln u for u = (word >> 9 + 1/2) * 2^-23, which is exact and strictly between 0 and 1.
template <typename V>
inline typename V::Float minus_two_ln(typename V::Word word) {
  using Float = typename V::Float;
  using Word = typename V::Word;
  const Float u = (V::to_float(word >> 9) + 0.5f) * 0x1p-23f;
  const Word bits = V::as_bits(u);
  // The exponent for which the mantissa lies in [sqrt(1/2), sqrt(2)); 127 << 23 keeps the shift unsigned.
  const Word biased = (bits - 0x3F3504F3u + 0x3F800000u) >> 23;
  const Float exponent = V::to_float(biased - 127u);
  const Float x = V::as_float(bits - (biased << 23) + 0x3F800000u) - 1.0f;
  const Float square = x * x;
  Float p = x * 0x1.204376p-4f + -0x1.d7a370p-4f;
  p = p * x + 0x1.de4a34p-4f;
  p = p * x + -0x1.fcba9ep-4f;
  p = p * x + 0x1.23d37ep-3f;
  p = p * x + -0x1.555ca0p-3f;
  p = p * x + 0x1.999d58p-3f;
  p = p * x + -0x1.fffff8p-3f;
  p = p * x + 0x1.555554p-2f;
  Float y = (p * x) * square;
  y = y + exponent * -0x1.bd0106p-13f;
  y = y - 0.5f * square;
  const Float ln = (x + y) + exponent * 0x1.630000p-1f;
  return ln * -2.0f;
}

// Sine and cosine of 2 pi (word >> 8) / 2^24: the nearest quarter turn, and a polynomial for the rest.
template <typename V>
inline void sine_cosine(typename V::Word word, typename V::Float& sine, typename V::Float& cosine) {
  using Float = typename V::Float;
  using Word = typename V::Word;
  const Word angle = word >> 8;
  const Word quadrant = (angle + (1u << 21)) >> 22;
  const Float t = V::to_float(angle - (quadrant << 22)) * 0x1.921fb6p-22f;
  const Float square = t * t;
  Float s = (-0x1.9943f2p-13f * square + 0x1.11073cp-7f) * square + -0x1.555546p-3f;
  s = (s * square) * t + t;
  Float c = (0x1.99eb9cp-16f * square + -0x1.6c0c34p-10f) * square + 0x1.55554ap-5f;
  c = ((c * square) * square - 0.5f * square) + 1.0f;
  // Masks, not branches: an odd quadrant swaps sine and cosine, and the sign bits follow the quadrant.
  const Word swap = 0u - (quadrant & 1u);
  const Word s_bits = V::as_bits(s);
  const Word c_bits = V::as_bits(c);
  const Word exchanged = (s_bits ^ c_bits) & swap;
  sine = V::as_float(s_bits ^ exchanged ^ ((quadrant & 2u) << 30));
  cosine = V::as_float(c_bits ^ exchanged ^ (((quadrant + 1u) & 2u) << 30));
}

}  // namespace detail

// The reference: words 0, 1 of a block give its elements 0, 1; words 2, 3 its elements 2, 3.
inline void normal_blocks(const Stream& stream, uint32_t first_block, float* out) {
  Words word;
  philox(stream, first_block, word);
  float radius[2][kBlocks];
  float sine[2][kBlocks];
  float cosine[2][kBlocks];
  for (size_t half = 0; half < 2; ++half) {
    for (size_t i = 0; i < kBlocks; ++i) {
      radius[half][i] = detail::minus_two_ln<detail::Scalar>(word.w[2 * half][i]);
    }
    for (size_t i = 0; i < kBlocks; ++i) {
      radius[half][i] = std::sqrt(radius[half][i]);
    }
    for (size_t i = 0; i < kBlocks; ++i) {
      detail::sine_cosine<detail::Scalar>(word.w[2 * half + 1][i], sine[half][i], cosine[half][i]);
    }
  }
  for (size_t i = 0; i < kBlocks; ++i) {
    out[4 * i + 0] = radius[0][i] * cosine[0][i];
    out[4 * i + 1] = radius[0][i] * sine[0][i];
    out[4 * i + 2] = radius[1][i] * cosine[1][i];
    out[4 * i + 3] = radius[1][i] * sine[1][i];
  }
}

// Standard normals of the elements start .. start + count - 1. start + count <= 2^34.
inline void normals(const Stream& stream, uint64_t start, size_t count, float* out, NoiseBlocks make = normal_blocks) {
  fill(stream, start, count, out, make);
}

}  // namespace rng
}  // namespace zoexport
