// Activations on 8-bit grids and rotated (docs/formats.md); exporter/zoexport/core/activation_grids.py and
// hadamard.py have the same bits. One rounding an operation, halves to even, so it is compiled without contraction.
#pragma once

#include <cstddef>

namespace zoexport {
namespace kernels {

// |x| <= threshold: clamp(round(x / scale), -127, 127) * scale. Otherwise E4M3(x / float_scale) * float_scale, E4M3
// being the nearest number of 4 bits of exponent and 3 of mantissa, and 448 for all greater ones. Scales are positive.
struct ActivationFormat {
  float threshold;  // infinity: INT8 alone; negative: E4M3 alone
  float scale;
  float float_scale;
};

// `x` and `out` have `count` elements; they may be the same array, and must not overlap otherwise. A NaN stays one.
void round_activations(const float* x, size_t count, const ActivationFormat& format, float* out);

inline constexpr size_t kRotated = 32;

// Each of the `blocks` of kRotated floats of x times Sylvester's Hadamard matrix over the root of their number, which is its
// own inverse. x and out may be the same array, and must not overlap otherwise.
void rotate(const float* x, size_t blocks, float* out);

}  // namespace kernels
}  // namespace zoexport
