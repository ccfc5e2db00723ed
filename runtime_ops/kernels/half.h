// IEEE binary16 ("half") from and to float, in integers and exact float operations: the same bits on every machine,
// with and without instructions for it. Bits of a half travel as uint16_t.
#pragma once

#include <cstdint>
#include <cstring>

namespace zoexport {
namespace kernels {

// Exact. A NaN keeps its sign and payload and is quiet.
inline float half_to_float(uint16_t half) {
  const uint32_t magnitude = half & 0x7FFFu;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  // Subnormal: the bits of 2^-14 (1 + m 2^-10), so taking away 2^-14 leaves m 2^-24.
  const uint32_t shifted = normal + (1u << 23);
  float value;
  std::memcpy(&value, &shifted, sizeof(value));
  value = value - 0x1p-14f;
  uint32_t subnormal;
  std::memcpy(&subnormal, &value, sizeof(subnormal));
  // Masks, not branches, so that loops become vectors.
  const uint32_t small = 0u - static_cast<uint32_t>(magnitude < 0x0400u);
  const uint32_t special = 0u - static_cast<uint32_t>(magnitude >= 0x7C00u);  // an exponent of ones, here too
  const uint32_t nan = static_cast<uint32_t>(magnitude > 0x7C00u);
  uint32_t bits = (subnormal & small) | (normal & ~small);
  bits = (bits + ((112u << 23) & special)) | (nan << 22) | (static_cast<uint32_t>(half & 0x8000u) << 16);
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Rounded to nearest even; from 65520 on infinity. A NaN keeps its sign and the top of its payload and is quiet.
inline uint16_t float_to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = bits & 0x80000000u;
  bits ^= sign;
  uint32_t half;
  if (bits > 0x7F800000u) {
    half = 0x7E00u | ((bits >> 13) & 0x03FFu);
  } else if (bits >= 143u << 23) {  // 2^16
    half = 0x7C00u;
  } else if (bits < 113u << 23) {  // below 2^-14: adding 1/2, whose last place is 2^-24, rounds
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof(magnitude));
    magnitude = magnitude + 0.5f;
    std::memcpy(&half, &magnitude, sizeof(half));
    half -= 126u << 23;
  } else {
    // Half of the last place, less one where what is kept is even; the carry may reach the exponent, up to infinity.
    bits += 0x0FFFu + ((bits >> 13) & 1u);
    half = (bits - (112u << 23)) >> 13;
  }
  return static_cast<uint16_t>(half | (sign >> 16));
}

}  // namespace kernels
}  // namespace zoexport
