// Building blocks of attention over a cache, on the vectors of vector_products.h: products of one query with keys, and
// sums of values. All variants that have a fused multiply-add give the same bits.
#pragma once

#include "product_variants.h"

namespace zoexport {
namespace kernels {
namespace detail {

inline constexpr size_t kSums = 16;  // partial sums of a dot product, in every variant

// The sums of kSums elements of two rows from `at` on.
template <typename V>
void multiply_part(const float* a, const float* b, size_t at, typename V::Float* sum) {
#pragma GCC unroll 4
  for (size_t i = 0; i < kSums / V::kLanes; ++i) {
    sum[i] = V::multiply_add(V::load(a + at + i * V::kLanes), V::load(b + at + i * V::kLanes), sum[i]);
  }
}

template <typename V>
void dots(const float* query, const float* rows, size_t count, size_t depth, float scale, float* out) {
  typedef float Four __attribute__((vector_size(16)));
  const size_t whole = depth / kSums * kSums;
  for (size_t row = 0; row < count; ++row) {
    typename V::Float sum[kSums / V::kLanes] = {};
    const float* key = rows + row * depth;
    for (size_t at = 0; at < whole; at += kSums) {
      multiply_part<V>(query, key, at, sum);
    }
    if (whole < depth) {
      float padded[2][kSums] = {};
      for (size_t i = whole; i < depth; ++i) {
        padded[0][i - whole] = query[i];
        padded[1][i - whole] = key[i];
      }
      multiply_part<V>(padded[0], padded[1], 0, sum);
    }
    Four four[4];
    __builtin_memcpy(four, sum, sizeof(four));
    const Four half = (four[0] + four[2]) + (four[1] + four[3]);
    out[row] = scale * ((half[0] + half[2]) + (half[1] + half[3]));
  }
}

// Compute W vectors of a row that has `width` elements.
template <typename V, size_t W>
void add_columns(float* out, const float* rows, const float* factors, size_t count, size_t stride, size_t width) {
  typename V::Float sum[W];
  float part[W * V::kLanes] = {};
  const bool whole = width == W * V::kLanes;
  for (size_t i = 0; i < width && !whole; ++i) {
    part[i] = out[i];
  }
#pragma GCC unroll 4
  for (size_t w = 0; w < W; ++w) {
    sum[w] = V::load((whole ? out : part) + w * V::kLanes);
  }
  for (size_t row = 0; row < count; ++row) {
    const float* value = rows + row * stride;
    if (!whole) {
      for (size_t i = 0; i < width; ++i) {
        part[i] = value[i];
      }
      value = part;
    }
    const typename V::Float factor = V::broadcast(factors[row]);
#pragma GCC unroll 4
    for (size_t w = 0; w < W; ++w) {
      sum[w] = V::multiply_add(factor, V::load(value + w * V::kLanes), sum[w]);
    }
  }
#pragma GCC unroll 4
  for (size_t w = 0; w < W; ++w) {
    V::store((whole ? out : part) + w * V::kLanes, sum[w]);
  }
  for (size_t i = 0; i < width && !whole; ++i) {
    out[i] = part[i];
  }
}

template <typename V>
void add_rows(float* out, const float* rows, const float* factors, size_t count, size_t width) {
  constexpr size_t kWide = 4 * V::kLanes;
  size_t at = 0;
  for (; at + kWide <= width; at += kWide) {
    add_columns<V, 4>(out + at, rows + at, factors, count, width, kWide);
  }
  for (; at < width; at += V::kLanes) {
    const size_t left = width - at < V::kLanes ? width - at : V::kLanes;
    add_columns<V, 1>(out + at, rows + at, factors, count, width, left);
  }
}

}  // namespace detail
}  // namespace kernels
}  // namespace zoexport
