#include "activations.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "each_width.h"
#include "row_math.h"

namespace zoexport {
namespace kernels {
namespace {

constexpr float kLargestStep = 127.0f;
constexpr float kLargestFloat = 448.0f;
// Adding 1.5 * 2^23 rounds to an integer; no intrinsic, so that every instruction set has vectors for it.
constexpr float kToInteger = 12582912.0f;

ZO_INLINE float int8(float x, float scale) {
  const float q = x / scale;
  const float low = q < -kLargestStep ? -kLargestStep : q;  // NaN stays NaN
  const float steps = low > kLargestStep ? kLargestStep : low;
  return ((steps + kToInteger) - kToInteger) * scale;
}

ZO_INLINE float e4m3(float x, float scale) {
  const float q = x / scale;
  const float size = std::fabs(q);
  const float magnitude = size > kLargestFloat ? kLargestFloat : size;  // NaN stays NaN
  // 2^e, not below the least normal number's. The last place of 2^(e+20) is 2^(e-3).
  const float power = row_math::float_of(row_math::bits_of(magnitude) & 0x7F800000u);
  const float shift = (power < 0x1p-6f ? 0x1p-6f : power) * 0x1p20f;
  return row_math::with_sign_of((magnitude + shift) - shift, q) * scale;
}

typedef float Half __attribute__((vector_size(kRotated / 2 * sizeof(float))));

// Sums of values D apart, and behind them differences.
template <int D>
ZO_INLINE void mix(Half& v) {
#define ZO_LANES(of) \
  of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7), of(8), of(9), of(10), of(11), of(12), of(13), of(14), of(15)
#define ZO_OTHER(lane) ((lane) ^ D)
#define ZO_SIGN(lane) (((lane) & D) != 0 ? -1.0f : 1.0f)
  const Half other = __builtin_shufflevector(v, v, ZO_LANES(ZO_OTHER)), sign = {ZO_LANES(ZO_SIGN)};
#undef ZO_SIGN
#undef ZO_OTHER
#undef ZO_LANES
  v = other + sign * v;
}

ZO_EACH_WIDTH
void rotate_blocks(const float* x, size_t blocks, float* out) {
  const float factor = 0.17677669529663689f;  // 1 / sqrt(32)
  for (size_t i = 0; i < blocks; ++i, x += kRotated, out += kRotated) {
    Half halves[2];
    std::memcpy(halves, x, sizeof(halves));
    for (Half& half : halves) {
      mix<1>(half);
      mix<2>(half);
      mix<4>(half);
      mix<8>(half);
    }
    const Half mixed[] = {(halves[0] + halves[1]) * factor, (halves[0] - halves[1]) * factor};
    std::memcpy(out, mixed, sizeof(mixed));
  }
}

}  // namespace

void rotate(const float* x, size_t blocks, float* out) { rotate_blocks(x, blocks, out); }

void round_activations(const float* x, size_t count, const ActivationFormat& format, float* out) {
  const float threshold = format.threshold, scale = format.scale, float_scale = format.float_scale;
  if (threshold == std::numeric_limits<float>::infinity()) {
    for (size_t i = 0; i < count; ++i) {
      out[i] = int8(x[i], scale);
    }
  } else if (threshold < 0.0f) {
    for (size_t i = 0; i < count; ++i) {
      out[i] = e4m3(x[i], float_scale);
    }
  } else {
    for (size_t i = 0; i < count; ++i) {
      const float whole = int8(x[i], scale), part = e4m3(x[i], float_scale);
      out[i] = std::fabs(x[i]) <= threshold ? whole : part;
    }
  }
}

}  // namespace kernels
}  // namespace zoexport
