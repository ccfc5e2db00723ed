// The softmax of attention and its gradient, on tiles of scores and the vectors of vector_products.h. In addition to
// the requirements of that file, V has Int, vectors of int32_t.
#pragma once

#include "product_variants.h"

namespace zoexport {
namespace kernels {
namespace detail {

// Exponentials as in row_math::exp, with fused multiply-adds if V has them, for x up to 1. The result is 0 if it would
// be below the least normal float, and NaN stays NaN.
template <typename V>
inline __attribute__((always_inline)) typename V::Float exponential(typename V::Float x) {
  typedef typename V::Float Float;
  typedef typename V::Word Word;
  // Adding 1.5 * 2^23 rounds to an integer, which then sits in the low bits.
  const Float shifted = V::multiply_add(x, V::broadcast(0x1.715476p0f), V::broadcast(12582912.0f));
  const Float n = shifted - 12582912.0f;
  const Float r = V::multiply_add(n, V::broadcast(0x1.bd0106p-13f), V::multiply_add(n, V::broadcast(-0x1.63p-1f), x));
  Float p = V::multiply_add(V::broadcast(0x1.a0d2cep-13f), r, V::broadcast(0x1.6e879cp-10f));
  p = V::multiply_add(p, r, V::broadcast(0x1.111210p-7f));
  p = V::multiply_add(p, r, V::broadcast(0x1.555382p-5f));
  p = V::multiply_add(p, r, V::broadcast(0x1.555554p-3f));
  p = V::multiply_add(p, r, V::broadcast(0.5f));
  p = V::multiply_add(p, r * r, r) + 1.0f;
  const Word scaled = (Word)p + ((Word)shifted << 23u);
  const Float least = V::broadcast(-0x1.5d589ep6f);
  const Word normal = (Word)(x >= least), below = (Word)(x < least);
  return (Float)((scaled & normal) | ((Word)x & ~(normal | below)));
}

// 0, 1, ... in the lanes.
template <typename V>
typename V::Int lane_numbers() {
  int32_t numbers[V::kLanes];
  for (size_t i = 0; i < V::kLanes; ++i) {
    numbers[i] = static_cast<int32_t>(i);
  }
  typename V::Int lanes;
  __builtin_memcpy(&lanes, numbers, sizeof(lanes));
  return lanes;
}

inline __attribute__((always_inline)) int32_t least_of(int32_t a, int32_t b) { return a < b ? a : b; }
inline __attribute__((always_inline)) int32_t greatest_of(int32_t a, int32_t b) { return a > b ? a : b; }

// Rows of a tile that a range of columns sees: begin .. end-1 are seen by some of them, all_begin .. all_end-1 by all.
struct SeenRows {
  int32_t begin, all_begin, all_end, end;
};

// Return the rows seen among `count` keys from first_key on, for the queries first .. last.
inline __attribute__((always_inline)) SeenRows seen_rows(const Seen& seen, int32_t first_key, int32_t count,
                                                         int32_t first, int32_t last) {
  SeenRows rows = {0, 0, count, count};
  if (seen.causal) {
    rows.end = greatest_of(0, least_of(count, last + 1 - first_key));
    rows.all_end = greatest_of(0, least_of(count, first + 1 - first_key));
  }
  if (seen.window > 0) {
    rows.begin = least_of(rows.end, greatest_of(0, first - seen.window + 1 - first_key));
    rows.all_begin = least_of(rows.end, greatest_of(0, last - seen.window + 1 - first_key));
    rows.all_end = greatest_of(rows.all_end, rows.all_begin);
  }
  return rows;
}

// The greatest of the scores of keys begin .. end-1 and of `most`. Those that change are stored: with a bias, and, where
// Masked, -infinity for what a query does not see.
template <typename V, bool Masked>
typename V::Float greatest_scores(const ScoreColumns& c, float* column, int32_t begin, int32_t end,
                                  typename V::Int query, typename V::Float most) {
  typedef typename V::Float Float;
  typedef typename V::Word Word;
  constexpr size_t kUnrolled = 4;  // maxima that do not wait for each other
  Float greatest[kUnrolled] = {most, most, most, most};
  const Float hidden = V::broadcast(-__builtin_inff());
  const auto take = [&](int32_t key, Float& before) {
    float* at = column + static_cast<size_t>(key) * c.stride;
    Float score = V::load(at);
    if (c.bias != nullptr) {
      score = score + c.bias[key];
    }
    if (Masked) {
      const int32_t place = c.first_key + key;
      Word mask = (Word)(query < place);
      if (c.seen.window > 0) {
        mask |= (Word)(query >= place + c.seen.window);
      }
      score = (Float)(((Word)score & ~mask) | ((Word)hidden & mask));
    }
    if (Masked || c.bias != nullptr) {
      V::store(at, score);
    }
    before = V::greatest(before, score);
  };
  int32_t key = begin;
  for (; key + static_cast<int32_t>(kUnrolled) <= end; key += static_cast<int32_t>(kUnrolled)) {
#pragma GCC unroll 4
    for (size_t i = 0; i < kUnrolled; ++i) {
      take(key + static_cast<int32_t>(i), greatest[i]);
    }
  }
  for (; key < end; ++key) {
    take(key, greatest[0]);
  }
  return V::greatest(V::greatest(greatest[0], greatest[1]), V::greatest(greatest[2], greatest[3]));
}

template <typename V>
void online_softmax(const ScoreColumns& c) {
  typedef typename V::Float Float;
  typedef typename V::Int Int;
  const int32_t keys = static_cast<int32_t>(c.keys);
  for (size_t lane = 0; lane < c.queries; lane += V::kLanes) {
    const int32_t first = c.first_query + static_cast<int32_t>(lane);
    const SeenRows rows = seen_rows(c.seen, c.first_key, keys, first, first + static_cast<int32_t>(V::kLanes) - 1);
    float* column = c.scores + lane;
    const Int query = lane_numbers<V>() + first;
    const Float before = V::load(c.greatest + lane);
    Float most = greatest_scores<V, true>(c, column, rows.begin, rows.all_begin, query, before);
    most = greatest_scores<V, false>(c, column, rows.all_begin, rows.all_end, query, most);
    most = greatest_scores<V, true>(c, column, rows.all_end, rows.end, query, most);
    Float total = {};
    for (int32_t key = 0; key < keys; ++key) {
      float* at = column + static_cast<size_t>(key) * c.stride;
      if (key < rows.begin || key >= rows.end) {
        V::store(at, Float{});
        continue;
      }
      const Float part = exponential<V>(V::load(at) - most);
      total = total + part;
      V::store(at, part);
    }
    const Float factor = exponential<V>(before - most);
    V::store(c.greatest + lane, most);
    V::store(c.total + lane, V::multiply_add(V::load(c.total + lane), factor, total));
    V::store(c.factor + lane, factor);
  }
}

template <typename V, bool Masked>
void gradient_rows(const ScoreRows& t) {
  typedef typename V::Float Float;
  typedef typename V::Word Word;
  typedef typename V::Int Int;
  const Float scale = V::broadcast(t.scale);
  for (size_t row = 0; row < t.queries; ++row) {
    float* scores = t.scores + row * t.stride;
    float* gradient = t.gradient + row * t.stride;
    const Float lse = V::broadcast(t.lse[row]), delta = V::broadcast(t.delta[row]);
    const int32_t query = t.first_query + static_cast<int32_t>(row);
    for (size_t lane = 0; lane < t.keys; lane += V::kLanes) {
      Float score = V::load(scores + lane) * scale;
      if (t.bias != nullptr) {
        score = score + V::load(t.bias + lane);
      }
      // Rounding may leave a score a little above its sum's logarithm.
      Float p = exponential<V>(score - lse);
      Float ds = p * (V::load(gradient + lane) - delta) * scale;
      if (Masked) {
        const Int place = lane_numbers<V>() + (t.first_key + static_cast<int32_t>(lane));
        Word mask = (Word)(place > query);
        if (t.seen.window > 0) {
          mask |= (Word)(place <= query - t.seen.window);
        }
        p = (Float)((Word)p & ~mask);
        ds = (Float)((Word)ds & ~mask);
      }
      V::store(scores + lane, p);
      V::store(gradient + lane, ds);
    }
  }
}

template <typename V>
void softmax_gradient(const ScoreRows& t) {
  const int32_t last_key = t.first_key + static_cast<int32_t>(t.keys) - 1;
  const int32_t last_query = t.first_query + static_cast<int32_t>(t.queries) - 1;
  const bool ahead = t.seen.causal && last_key > t.first_query;
  const bool behind = t.seen.window > 0 && t.first_key + t.seen.window <= last_query;
  if (ahead || behind) {
    gradient_rows<V, true>(t);
  } else {
    gradient_rows<V, false>(t);
  }
}

}  // namespace detail
}  // namespace kernels
}  // namespace zoexport
