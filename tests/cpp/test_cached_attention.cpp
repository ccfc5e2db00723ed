// Attention over a cache against sums in double, in pieces of any length, with windows, caps, slopes and grouped heads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "kernel_results.h"
#include "kernels/cached_attention.h"
#include "kernels/product_variants.h"

using check::noise;
using zoexport::kernels::CachedAttention;
using zoexport::kernels::product_variants;
using zoexport::kernels::ProductKernels;
using zoexport::kernels::ProductVariant;

namespace {

struct Shape {
  size_t heads, groups, depth, width, total, window;
  float scale, softcap;
  bool sloped;
};

// (heads, total, ...) of all tokens at once.
struct Inputs {
  explicit Inputs(const Shape& s)
      : q(noise(1, s.heads * s.total * s.depth)),
        k(noise(2, s.groups * s.total * s.depth)),
        v(noise(3, s.groups * s.total * s.width)),
        slopes(noise(4, s.heads)) {}
  std::vector<float> q, k, v, slopes;
};

std::vector<double> expected(const Shape& s, const Inputs& in) {
  std::vector<double> out(s.heads * s.total * s.width, 0.0);
  for (size_t h = 0; h < s.heads; ++h) {
    const size_t g = h / (s.heads / s.groups);
    for (size_t t = 0; t < s.total; ++t) {
      const size_t begin = s.window == 0 || t < s.window ? 0 : t - s.window + 1;
      std::vector<double> scores;
      for (size_t p = begin; p <= t; ++p) {
        double score = 0;
        for (size_t d = 0; d < s.depth; ++d) {
          score += double{in.q[(h * s.total + t) * s.depth + d]} * double{in.k[(g * s.total + p) * s.depth + d]};
        }
        score *= double{s.scale};
        score = s.softcap > 0 ? double{s.softcap} * std::tanh(score / double{s.softcap}) : score;
        score -= s.sloped ? double{in.slopes[h]} * static_cast<double>(t - p) : 0.0;
        scores.push_back(score);
      }
      const double most = *std::max_element(scores.begin(), scores.end());
      double total = 0;
      for (double& score : scores) {
        score = std::exp(score - most);
        total += score;
      }
      for (size_t i = 0; i < scores.size(); ++i) {
        for (size_t e = 0; e < s.width; ++e) {
          out[(h * s.total + t) * s.width + e] +=
              scores[i] / total * double{in.v[(g * s.total + begin + i) * s.width + e]};
        }
      }
    }
  }
  return out;
}

// Rows first .. first+count-1 of every head.
std::vector<float> part(const std::vector<float>& all, size_t heads, size_t total, size_t width, size_t first,
                        size_t count) {
  std::vector<float> out;
  for (size_t h = 0; h < heads; ++h) {
    const float* begin = all.data() + (h * total + first) * width;
    out.insert(out.end(), begin, begin + count * width);
  }
  return out;
}

// All tokens, `step` at a time, over caches of `rows` rows that hold NaN where nothing was put.
std::vector<float> in_pieces(const Shape& s, const Inputs& in, size_t step, size_t rows,
                             const ProductKernels& kernels) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> keys(s.groups * rows * s.depth, nan), values(s.groups * rows * s.width, nan);
  std::vector<float> out(s.heads * s.total * s.width);
  for (size_t first = 0; first < s.total; first += step) {
    const size_t count = std::min(step, s.total - first);
    const auto q = part(in.q, s.heads, s.total, s.depth, first, count);
    const auto k = part(in.k, s.groups, s.total, s.depth, first, count);
    const auto v = part(in.v, s.groups, s.total, s.width, first, count);
    std::vector<float> result(s.heads * count * s.width, nan);
    const CachedAttention attention{
        q.data(), k.data(), v.data(),  keys.data(), values.data(), s.sloped ? in.slopes.data() : nullptr,
        s.heads,  s.groups, count,     s.depth,     s.width,       rows,
        first,    s.scale,  s.softcap, s.window,    result.data()};
    CHECK(cache_reaches(attention));
    // The last query first: each is computed alone.
    for (size_t i = s.heads * count; i-- > 0;) {
      CHECK(run_queries(attention, i, i + 1, kernels));
    }
    for (size_t h = 0; h < s.heads; ++h) {
      std::copy(result.begin() + static_cast<std::ptrdiff_t>(h * count * s.width),
                result.begin() + static_cast<std::ptrdiff_t>((h + 1) * count * s.width),
                out.begin() + static_cast<std::ptrdiff_t>((h * s.total + first) * s.width));
    }
    for (size_t g = 0; g < s.groups; ++g) {
      for (size_t i = 0; i < count; ++i) {
        const size_t at = g * rows + (first + i) % rows;
        std::memcpy(&keys[at * s.depth], &k[(g * count + i) * s.depth], s.depth * sizeof(float));
        std::memcpy(&values[at * s.width], &v[(g * count + i) * s.width], s.width * sizeof(float));
      }
    }
  }
  return out;
}

void any_shape_in_any_pieces(const ProductKernels& kernels) {
  const Shape shapes[] = {
      {4, 2, 16, 16, 33, 0, 0.25f, 0.0f, false},  {3, 3, 7, 5, 20, 0, 0.5f, 0.0f, true},
      {6, 1, 64, 64, 40, 9, 0.125f, 0.0f, false}, {5, 5, 1, 3, 17, 1, 1.0f, 0.0f, false},
      {4, 2, 19, 33, 29, 5, 0.3f, 2.0f, false},   {2, 1, 80, 80, 31, 64, 0.1f, 30.0f, true},
      {2, 2, 17, 36, 30, 0, 0.2f, 0.0f, false},   {3, 1, 128, 63, 21, 7, 0.1f, 0.0f, true},
  };
  for (const Shape& shape : shapes) {
    const Inputs inputs(shape);
    const std::vector<double> wanted = expected(shape, inputs);
    const size_t least = shape.window == 0 ? shape.total : std::min(shape.window, shape.total);
    const std::vector<float> whole = in_pieces(shape, inputs, shape.total, least, kernels);
    for (size_t i = 0; i < wanted.size(); ++i) {
      CHECK(std::fabs(double{whole[i]} - wanted[i]) <= 2e-6 * (1 + std::fabs(wanted[i])));
    }
    for (const size_t step : {size_t{1}, size_t{4}, size_t{11}}) {
      for (const size_t rows : {least, least + 3}) {
        const std::vector<float> found = in_pieces(shape, inputs, step, rows, kernels);
        CHECK(std::memcmp(found.data(), whole.data(), whole.size() * sizeof(float)) == 0);
      }
    }
  }
}

void a_cache_that_is_too_short_is_seen() {
  CachedAttention attention{};
  attention.rows = 8;
  attention.first = 8;
  CHECK(cache_reaches(attention));
  attention.first = 9;
  CHECK(!cache_reaches(attention));
  attention.window = 9;
  CHECK(cache_reaches(attention));
  attention.window = 10;
  CHECK(!cache_reaches(attention));
}

}  // namespace

int main() {
  for (const ProductVariant& variant : product_variants()) {
    if (variant.runs_here) {
      any_shape_in_any_pieces(*variant.kernels);
    }
  }
  a_cache_that_is_too_short_is_seen();
  return check::result();
}
