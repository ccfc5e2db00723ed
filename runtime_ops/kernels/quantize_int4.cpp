#include "quantize_int4.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

namespace zoexport {
namespace kernels {
namespace {

constexpr size_t kLanes = 8;
constexpr int kCandidates = 16;
constexpr uint32_t kTiniest = 0x0080;  // the smallest normal number, as bfloat16
constexpr float kTiny = std::numeric_limits<float>::min();

typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

// By reference: how such a vector is passed depends on the instruction set.
inline void load(const float* from, Lanes& lanes) { std::memcpy(&lanes, from, sizeof(lanes)); }

float from_bfloat16(uint32_t bits) {
  const uint32_t wide = bits << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// To nearest even, of a finite number that stays finite.
uint32_t to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}

// The integers nearest to w / scale, even ones of two, within -8 .. 7.
inline void round_to_codes(const float* w, float scale, Lanes& codes) {
  // Added and taken away again it leaves no fraction, of numbers below 2^22.
  constexpr float kRound = 0x1.8p23f;
  load(w, codes);
  codes = (codes / scale + kRound) - kRound;
  codes = codes < -8.0f ? Lanes{} - 8.0f : codes;
  codes = codes > 7.0f ? Lanes{} + 7.0f : codes;
}

// sum (code * relative - unit)^2: of the places i, i + 8, ... one after another, then of halves.
float error_of(const float* w, const float* unit, size_t size, float scale, float relative) {
  Lanes sum = {};
  for (size_t i = 0; i < size; i += kLanes) {
    Lanes codes, units;
    round_to_codes(w + i, scale, codes);
    load(unit + i, units);
    const Lanes off = codes * relative - units;
    sum = sum + off * off;
  }
  return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

// The scale with the least error; of equal ones that of the smallest divisor.
uint32_t best_scale(const float* w, float* unit, size_t size, float largest) {
  const float divided_by = std::max(largest, kTiny);
  for (size_t i = 0; i < size; ++i) {
    unit[i] = w[i] / divided_by;
  }
  uint32_t best = kTiniest;
  float least = std::numeric_limits<float>::infinity();
  for (int i = 0; i < kCandidates; ++i) {
    const float divisor = 6.25f + 0.25f * static_cast<float>(i);
    const uint32_t bits = std::max(to_bfloat16(largest / divisor), kTiniest);
    const float scale = from_bfloat16(bits);
    const float error = error_of(w, unit, size, scale, scale / divided_by);
    if (error < least) {
      best = bits;
      least = error;
    }
  }
  return best;
}

void pack(const float* w, size_t size, float scale, uint8_t* codes) {
  for (size_t i = 0; i < size; i += kLanes) {
    Lanes found;
    round_to_codes(w + i, scale, found);
    for (size_t pair = 0; pair < kLanes / 2; ++pair) {
      const int low = static_cast<int>(found[2 * pair]) + 8, high = static_cast<int>(found[2 * pair + 1]) + 8;
      codes[i / 2 + pair] = static_cast<uint8_t>(low | (high << 4));
    }
  }
}

}  // namespace

void quantize_int4(const float* weight, size_t groups, size_t group_size, uint8_t* codes, uint16_t* scales) {
  const std::unique_ptr<float[]> unit(new float[group_size]);
  for (size_t group = 0; group < groups; ++group) {
    const float* w = weight + group * group_size;
    float largest = 0.0f;
    for (size_t i = 0; i < group_size; ++i) {
      largest = std::max(largest, std::fabs(w[i]));
    }
    const uint32_t scale = largest > 0.0f ? best_scale(w, unit.get(), group_size, largest) : kTiniest;
    scales[group] = static_cast<uint16_t>(scale);
    pack(w, group_size, from_bfloat16(scale), codes + group * (group_size / 2));
  }
}

}  // namespace kernels
}  // namespace zoexport
