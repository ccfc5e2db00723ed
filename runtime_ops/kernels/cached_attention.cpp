#include "cached_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "each_width.h"
#include "row_math.h"
#include "scratch.h"

namespace zoexport {
namespace kernels {
namespace {

constexpr size_t kLanes = 16;
constexpr size_t kWorthAThread = size_t{1} << 15;  // multiply-adds

typedef float Four __attribute__((vector_size(16)));

ZO_INLINE Four load(const float* from) {
  Four v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

float dot(const float* a, const float* b, size_t count) {
  Four lane[4] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t j = 0; j < 4; ++j) {
      lane[j] += load(a + i + 4 * j) * load(b + i + 4 * j);
    }
  }
  float rest = 0.0f;
  for (; i < count; ++i) {
    rest += a[i] * b[i];
  }
  const Four sum = (lane[0] + lane[1]) + (lane[2] + lane[3]);
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + rest;
}

ZO_EACH_WIDTH void cap(float* scores, size_t count, float softcap) {
  for (size_t i = 0; i < count; ++i) {
    scores[i] = softcap * row_math::tanh(scores[i] / softcap);
  }
}

// exp(score - greatest).
ZO_EACH_WIDTH void exponentials(float* scores, size_t count, float greatest) {
  for (size_t i = 0; i < count; ++i) {
    scores[i] = row_math::exp(scores[i] - greatest);
  }
}

ZO_EACH_WIDTH void add_scaled(float* __restrict out, const float* row, float factor, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] += factor * row[i];
  }
}

ZO_EACH_WIDTH void multiply(float* out, float factor, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] *= factor;
  }
}

// Where a group's key or value at a position lies.
struct Rows {
  const float* cached;
  const float* own;
  size_t rows;
  size_t first;
  size_t width;

  const float* at(size_t position) const {
    return position < first ? cached + position % rows * width : own + (position - first) * width;
  }
};

void run_query(const CachedAttention& a, size_t head, size_t token, float* scores) {
  const size_t group = head / (a.heads / a.groups);
  const size_t position = a.first + token;
  const size_t begin = a.window == 0 || position < a.window ? 0 : position - a.window + 1;
  const size_t count = position - begin + 1;
  const Rows keys{a.keys + group * a.rows * a.depth, a.k + group * a.tokens * a.depth, a.rows, a.first, a.depth};
  const float* query = a.q + (head * a.tokens + token) * a.depth;
  for (size_t i = 0; i < count; ++i) {
    scores[i] = a.scale * dot(query, keys.at(begin + i), a.depth);
  }
  if (a.softcap > 0.0f) {
    cap(scores, count, a.softcap);
  }
  if (a.slopes != nullptr) {
    for (size_t i = 0; i < count; ++i) {
      scores[i] -= a.slopes[head] * static_cast<float>(count - 1 - i);
    }
  }
  float greatest = scores[0];
  for (size_t i = 1; i < count; ++i) {
    greatest = scores[i] > greatest || std::isnan(scores[i]) ? scores[i] : greatest;  // NaN stays
  }
  exponentials(scores, count, greatest);
  double total = 0.0;
  for (size_t i = 0; i < count; ++i) {
    total += static_cast<double>(scores[i]);
  }
  const Rows values{a.values + group * a.rows * a.width, a.v + group * a.tokens * a.width, a.rows, a.first, a.width};
  float* out = a.out + (head * a.tokens + token) * a.width;
  std::fill(out, out + a.width, 0.0f);
  for (size_t i = 0; i < count; ++i) {
    add_scaled(out, values.at(begin + i), scores[i], a.width);
  }
  multiply(out, static_cast<float>(1.0 / total), a.width);
}

}  // namespace

bool cache_reaches(const CachedAttention& attention) {
  const size_t seen = attention.window == 0 ? attention.first : std::min(attention.first, attention.window - size_t{1});
  return seen <= attention.rows;
}

bool run_queries(const CachedAttention& attention, size_t begin, size_t end) {
  static thread_local Scratch scratch;
  const size_t most = attention.first + attention.tokens;
  float* scores = scratch.floats(attention.window == 0 ? most : std::min(most, attention.window));
  if (scores == nullptr) {
    return false;
  }
  for (size_t i = begin; i < end; ++i) {
    run_query(attention, i / attention.tokens, i % attention.tokens, scores);
  }
  return true;
}

size_t queries_of_a_thread(const CachedAttention& attention) {
  const size_t most = attention.first + attention.tokens;
  const size_t seen = attention.window == 0 ? most : std::min(most, attention.window);
  const size_t work = seen * (attention.depth + attention.width);
  return std::max<size_t>(1, kWorthAThread / std::max<size_t>(1, work));
}

}  // namespace kernels
}  // namespace zoexport
