// Functions of one float, branch-free so that loops over them vectorize. Each operation is rounded on its own, so every
// instruction set gives the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace zoexport {
namespace kernels {
namespace row_math {

#define ZO_INLINE inline __attribute__((always_inline))

constexpr float kInfinity = std::numeric_limits<float>::infinity();

ZO_INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

ZO_INLINE float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// Within 2e-7 relative; 0 where the result would be below the least normal float.
ZO_INLINE float exp(float x) {
  // Adding 1.5 * 2^23 rounds to an integer, which then sits in the low bits.
  const float shifted = x * 0x1.715476p0f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;
  float p = 0x1.a0d2cep-13f;
  p = p * r + 0x1.6e879cp-10f;
  p = p * r + 0x1.111210p-7f;
  p = p * r + 0x1.555382p-5f;
  p = p * r + 0x1.555554p-3f;
  p = p * r + 0.5f;
  p = (p * (r * r) + r) + 1.0f;
  // p lies around 1, so that its exponent takes n for every normal result, 2^128 * p with p < 1 among them.
  const float scaled = float_of(bits_of(p) + (bits_of(shifted) << 23));
  const float bounded = x <= 0x1.62e42ep6f ? scaled : x + kInfinity;  // NaN stays NaN
  return x < -0x1.5d589ep6f ? 0.0f : bounded;
}

// fdlibm's: x = 2^k * (1 + f) with 1 + f around 1, log(1 + f) by the series of s = f / (2 + f).
ZO_INLINE float log(float x) {
  const bool tiny = x < 0x1p-126f;
  const uint32_t in = bits_of(tiny ? x * 0x1p25f : x) + (0x3F800000u - 0x3F3504F3u);
  const float k = static_cast<float>(static_cast<int32_t>(in >> 23) - (tiny ? 127 + 25 : 127));
  const float f = float_of((in & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
  const float s = f / (2.0f + f);
  const float z = s * s;
  const float w = z * z;
  const float odd = w * (0x1.999c26p-2f + w * 0x1.f13c4cp-3f);
  const float even = z * (0x1.555554p-1f + w * 0x1.23d3dcp-2f);
  const float half = 0.5f * f * f;
  const float tail = s * (half + (odd + even)) + k * 0x1.2fefa2p-17f;
  const float result = ((tail - half) + f) + k * 0x1.62e3p-1f;
  const float above = x == kInfinity ? x : result;
  const float at = x == 0.0f ? -kInfinity : above;
  return x >= 0.0f ? at : std::numeric_limits<float>::quiet_NaN();
}

ZO_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

ZO_INLINE float with_sign_of(float magnitude, float x) {
  return float_of((bits_of(magnitude) & 0x7FFFFFFFu) | (bits_of(x) & 0x80000000u));
}

// Cephes' polynomial near 0, where 1 - 2 / (exp(2x) + 1) would cancel.
ZO_INLINE float tanh(float x) {
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float near = (p * z) * x + x;
  const float t = std::fabs(x);
  const float far = with_sign_of(1.0f - 2.0f / (exp(t + t) + 1.0f), x);
  return t < 0.625f ? near : far;
}

// Within 2e-7 absolute: a polynomial up to 0.93, and 1 - exp(polynomial) from there to 4, where erf is 1.
ZO_INLINE float erf(float x) {
  const float magnitude = std::fabs(x);
  const float t = magnitude > 4.0f ? 4.0f : magnitude;  // NaN stays NaN
  const float s = t * t;
  float far = (-1.72853470e-5f * t + 3.83197126e-4f) * s + (-3.88396438e-3f * t + 2.42546219e-2f);
  far = far * t + -1.06777877e-1f;
  far = far * t + -6.34846687e-1f;
  far = far * t + -1.28717512e-1f;
  far = far * t - t;
  far = 1.0f - exp(far);
  float near = -5.96761703e-4f;
  near = near * s + 4.99119423e-3f;
  near = near * s - 2.67681349e-2f;
  near = near * s + 1.12819925e-1f;
  near = near * s - 3.76125336e-1f;
  near = near * s + 1.28379166e-1f;
  near = near * t + t;
  return with_sign_of(t > 0.927734375f ? far : near, x);
}

}  // namespace row_math
}  // namespace kernels
}  // namespace zoexport
