#include "cached_attention.h"

#include <algorithm>

#include "each_width.h"
#include "product_variants.h"
#include "row_loops.h"
#include "row_math.h"
#include "scaling.h"
#include "scratch.h"

namespace zoexport {
namespace kernels {
namespace {

constexpr size_t kWorthAThread = size_t{1} << 15;  // multiply-adds

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

// A reduction of `count` scores.
float reduced(RowOp op, const float* scores, size_t count) {
  float result = 0;
  RowLoop loop{};
  loop.dst = &result;
  loop.a.data = scores;
  loop.rows = 1;
  loop.width = count;
  run_row_loop(op, loop);
  return result;
}

// The keys or values of a group.
struct Rows {
  const float* cached;
  const float* own;
  size_t rows;
  size_t first;
  size_t width;

  // Calls body(row, i, count) for the rows of positions begin .. end-1, as many at a time as lie one after the other: from
  // `row` on those of positions begin + i to begin + i + count - 1.
  template <typename Body>
  void each(size_t begin, size_t end, const Body& body) const {
    for (size_t at = begin; at < end;) {
      const bool old = at < first;
      const size_t last = old ? std::min({end, first, at + rows - at % rows}) : end;
      body(old ? cached + at % rows * width : own + (at - first) * width, at - begin, last - at);
      at = last;
    }
  }
};

void run_query(const CachedAttention& a, size_t head, size_t token, const ProductKernels& kernels, float* scores) {
  const size_t group = head / (a.heads / a.groups);
  const size_t position = a.first + token;
  const size_t begin = a.window == 0 || position < a.window ? 0 : position - a.window + 1;
  const size_t count = position - begin + 1;
  const Rows keys{a.keys + group * a.rows * a.depth, a.k + group * a.tokens * a.depth, a.rows, a.first, a.depth};
  const float* query = a.q + (head * a.tokens + token) * a.depth;
  keys.each(begin, position + 1, [&](const float* rows, size_t i, size_t some) {
    kernels.dots(query, rows, some, a.depth, a.scale, scores + i);
  });
  if (a.softcap > 0.0f) {
    cap(scores, count, a.softcap);
  }
  if (a.slopes != nullptr) {
    for (size_t i = 0; i < count; ++i) {
      scores[i] -= a.slopes[head] * static_cast<float>(count - 1 - i);
    }
  }
  exponentials(scores, count, reduced(RowOp::kRowMax, scores, count));
  const float total = reduced(RowOp::kSum, scores, count);
  const Rows values{a.values + group * a.rows * a.width, a.v + group * a.tokens * a.width, a.rows, a.first, a.width};
  float* out = a.out + (head * a.tokens + token) * a.width;
  std::fill(out, out + a.width, 0.0f);
  values.each(begin, position + 1, [&](const float* rows, size_t i, size_t some) {
    kernels.add_rows(out, rows, scores + i, some, a.width);
  });
  scale(out, 1.0f / total, a.width);
}

}  // namespace

bool cache_reaches(const CachedAttention& attention) {
  const size_t seen = attention.window == 0 ? attention.first : std::min(attention.first, attention.window - size_t{1});
  return seen <= attention.rows;
}

bool run_queries(const CachedAttention& attention, size_t begin, size_t end, const ProductKernels& kernels) {
  static thread_local Scratch scratch;
  const size_t most = attention.first + attention.tokens;
  float* scores = scratch.floats(attention.window == 0 ? most : std::min(most, attention.window));
  if (scores == nullptr) {
    return false;
  }
  for (size_t i = begin; i < end; ++i) {
    run_query(attention, i / attention.tokens, i % attention.tokens, kernels, scores);
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
