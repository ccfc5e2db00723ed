// Rounded activations against the numbers of each grid, listed: the nearest one, and of two the even one.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "kernels/activations.h"
#include "rng/normal.h"

using namespace zoexport::kernels;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float rounded(float x, const ActivationFormat& format) {
  float out;
  round_activations(&x, 1, format, &out);
  return out;
}

ActivationFormat int8(float scale) { return {kInfinity, scale, 1.0f}; }

ActivationFormat fp8(float scale) { return {-1.0f, 1.0f, scale}; }

// The numbers from 0 on that have no sign, in order; codes are their places.
std::vector<double> steps() {
  std::vector<double> found;
  for (int step = 0; step <= 127; ++step) {
    found.push_back(step);
  }
  return found;
}

// As the Open Compute Project's specification of 8-bit floats has E4M3: code 127 is NaN.
std::vector<double> floats() {
  std::vector<double> found;
  for (int code = 0; code < 127; ++code) {
    const int exponent = code / 8, fraction = code % 8;
    found.push_back(exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10));
  }
  return found;
}

// What lies between two numbers of a grid of scale 1 goes to the nearer one, the middle to the even code, on both sides
// of zero; all above the last one becomes it.
void goes_to_the_nearest(const std::vector<double>& grid, const ActivationFormat& format, bool has_negative_zero) {
  bool nearest = true;
  const auto is = [&](float x, double expected) {
    const double negative = expected == 0 && !has_negative_zero ? 0.0 : -expected;
    nearest = nearest && bits_of(rounded(x, format)) == bits_of(static_cast<float>(expected)) &&
              bits_of(rounded(-x, format)) == bits_of(static_cast<float>(negative));
  };
  for (size_t code = 0; code < grid.size(); ++code) {
    is(static_cast<float>(grid[code]), grid[code]);
    if (code + 1 < grid.size()) {
      const float middle = static_cast<float>((grid[code] + grid[code + 1]) / 2);
      is(middle, grid[code % 2 == 0 ? code : code + 1]);
      is(std::nextafter(middle, 0.0f), grid[code]);
      is(std::nextafter(middle, kInfinity), grid[code + 1]);
    }
  }
  for (const float large : {std::nextafter(static_cast<float>(grid.back()), kInfinity), 1e30f, kInfinity}) {
    is(large, grid.back());
  }
  CHECK(nearest);
  CHECK(std::isnan(rounded(kNan, format)) && std::isnan(rounded(-kNan, format)));
}

void scales_are_divided_by_and_multiplied_with() {
  bool same = true;
  std::vector<float> x(1000);
  zoexport::rng::normals(zoexport::rng::Stream{1, 2, 3, 4}, 0, x.size(), x.data());
  for (const float scale : {0.3f, 1e-20f, 7e10f}) {
    for (const float value : x) {
      const float scaled = 20.0f * scale * value;
      const float steps = std::min(std::max(std::nearbyint(scaled / scale), -127.0f), 127.0f) + 0.0f;
      same = same && bits_of(rounded(scaled, int8(scale))) == bits_of(steps * scale) &&
             bits_of(rounded(scaled, fp8(scale))) == bits_of(rounded(scaled / scale, fp8(1.0f)) * scale);
    }
  }
  CHECK(same);
}

void outliers_are_above_the_threshold() {
  const ActivationFormat format{1.27f, 0.01f, 0.25f};
  CHECK(rounded(0.5549f, format) == 55.0f * 0.01f);
  CHECK(rounded(1.27f, format) == 127.0f * 0.01f);
  CHECK(rounded(-1.27f, format) == -127.0f * 0.01f);
  CHECK(rounded(std::nextafter(1.27f, 2.0f), format) == 1.25f);
  CHECK(rounded(-33.0f, format) == -32.0f);
  CHECK(rounded(1000.0f, format) == 112.0f);
  CHECK(std::isnan(rounded(kNan, format)));
  CHECK(rounded(0.5f, (ActivationFormat{0.0f, 1.0f, 1.0f})) == 0.5f);
}

// Loops are vectors with a rest; nothing beside the elements is written.
void any_count_is_rounded_in_place() {
  bool same = true;
  std::vector<float> x(67);
  zoexport::rng::normals(zoexport::rng::Stream{5, 6, 7, 8}, 0, x.size(), x.data());
  for (const ActivationFormat& format : {int8(0.02f), fp8(0.001f), ActivationFormat{1.5f, 1.5f / 127.0f, 0x1p-7f}}) {
    for (size_t count = 0; count <= x.size(); ++count) {
      std::vector<float> out = x;
      round_activations(out.data(), count, format, out.data());
      for (size_t i = 0; i < x.size(); ++i) {
        same = same && bits_of(out[i]) == bits_of(i < count ? rounded(x[i], format) : x[i]);
      }
    }
  }
  CHECK(same);
}

// Element (i, j) of Sylvester's matrix is -1 to the number of bits that i and j share; sums of integers are exact.
void rows_are_multiplied_by_the_matrix() {
  bool same = true;
  std::vector<float> x(3 * kRotated);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>((i * 37) % 101) - 50.0f;
  }
  std::vector<float> out = x;
  rotate(out.data(), 3, out.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t block = i / kRotated * kRotated;
    float sum = 0.0f;
    for (size_t j = 0; j < kRotated; ++j) {
      sum += (__builtin_popcountll((i - block) & j) % 2 != 0 ? -1.0f : 1.0f) * x[block + j];
    }
    same = same && bits_of(out[i]) == bits_of(sum * 0.17677669529663689f);
  }
  CHECK(same);
}

}  // namespace

int main() {
  goes_to_the_nearest(steps(), int8(1.0f), false);
  goes_to_the_nearest(floats(), fp8(1.0f), true);
  scales_are_divided_by_and_multiplied_with();
  outliers_are_above_the_threshold();
  any_count_is_rounded_in_place();
  rows_are_multiplied_by_the_matrix();
  return check::result();
}
