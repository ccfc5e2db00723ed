// Products of few rows with INT4 weights, on the vectors of vector_products.h: every code is read once and multiplied
// in registers, without a panel. Sums have the same bits as with panels. In addition to the requirements of
// vector_products.h, V has
//
//   Int4Scale                  of a group, set(scale): times(word, i) is q * scale of the codes in bits 4 i to 4 i + 3
#pragma once

#include "product_variants.h"
#include "vector_rows.h"

namespace zoexport {
namespace kernels {
namespace detail {

inline constexpr size_t kLine = 64;            // bytes
inline constexpr size_t kScales = kBytes / 2;  // of a row that are read together
inline constexpr size_t kMostGroups = kMaxDepth / kInt4 + kScales;

// out[i] = the scales of group first + i of kLanes rows, `count` of them; up to kScales - 1 more are written.
template <typename V>
void load_scales(const Rows<V, uint16_t>& rows, size_t first, size_t count, size_t groups, typename V::Word* out) {
  const size_t last = groups < kScales ? 0 : groups - kScales;  // so that no read passes the end of a row
  for (size_t g = 0; g < count;) {
    const size_t from = first + g < last ? first + g : last;
    if (from < first || groups < kScales) {
      uint32_t lanes[V::kLanes];
      for (size_t i = 0; i < V::kLanes; ++i) {
        lanes[i] = static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(rows.begin[i])[first + g]) << 16;
      }
      __builtin_memcpy(out + g, lanes, sizeof(lanes));
      ++g;
      continue;
    }
    typename V::Word two[kFloats];
    V::load_columns(rows.begin, from * sizeof(uint16_t), two);
    g = from - first;
    for (size_t i = 0; i < kFloats; ++i) {
      out[g + 2 * i] = two[i] << 16u;
      out[g + 2 * i + 1] = two[i] & 0xFFFF0000u;
    }
    g += kScales;
  }
}

// R rows, and the columns of C from `column` on as far as W vectors reach or f.end.
template <typename V, size_t R, size_t W>
void multiply_columns(const FewRows& f, size_t column) {
  typedef typename V::Float Float;
  typedef typename V::Word Word;
  const Int4Matrix& b = f.b;
  const size_t groups = b.K / b.group_size, count = f.end - column < W * V::kLanes ? f.end - column : W * V::kLanes;
  typename V::Word scales[W][kMostGroups];
  const char* rows[W][V::kLanes];
  Float total[R][W];
  const uint8_t* ahead = b.codes + (column + W * V::kLanes) * (b.K / 2);
  const uint16_t* scales_ahead = b.scales + (column + W * V::kLanes) * groups;
  for (size_t i = 0; i < W * V::kLanes * groups; i += kLine / sizeof(uint16_t)) {
    __builtin_prefetch(scales_ahead + i);
  }
  for (size_t w = 0; w < W; ++w) {
    const Rows<V, uint8_t> unit(b.codes, b.K / 2, column + w * V::kLanes, column + count);
    float bias[V::kLanes] = {};
    for (size_t i = 0; i < V::kLanes; ++i) {
      rows[w][i] = unit.begin[i];
      if (f.bias != nullptr && w * V::kLanes + i < count) {
        bias[i] = f.bias[column + w * V::kLanes + i];
      }
    }
    for (size_t r = 0; r < R; ++r) {
      total[r][w] = V::load(bias);
    }
  }
  for (size_t first = 0; first < b.K; first += f.block) {
    const size_t end = b.K - first < f.block ? b.K : first + f.block;
    const size_t group = first / b.group_size;
    Float sum[R][W];
#pragma GCC unroll 8
    for (size_t w = 0; w < W; ++w) {
      const Rows<V, uint16_t> unit(b.scales, groups, column + w * V::kLanes, column + count);
      load_scales<V>(unit, group, (end - 1) / b.group_size + 1 - group, groups, scales[w]);
#pragma GCC unroll 8
      for (size_t r = 0; r < R; ++r) {
        sum[r][w] = Float{};
      }
    }
    size_t left = (group + 1) * b.group_size - first, of = 0;  // of the group; which one
    for (size_t p = first; p < end; p += kInt4) {
      Word words[W][kFloats];
      typename V::Int4Scale scale[W];
#pragma GCC unroll 8
      for (size_t w = 0; w < W; ++w) {
        V::load_columns(rows[w], p / 2, words[w]);
        scale[w].set((Float)scales[w][of]);
      }
      for (size_t i = 0; i < W * V::kLanes * kBytes; i += kLine) {
        __builtin_prefetch(ahead + i);
      }
      ahead += W * V::kLanes * kBytes;
      left -= kInt4;
      if (left == 0) {
        left = b.group_size;
        ++of;
      }
      const float* a = f.a + p;
#pragma GCC unroll 1
      for (size_t i = 0; i < kFloats; ++i) {
#pragma GCC unroll 8
        for (size_t k = 0; k < 8; ++k) {
          Float value[R];
#pragma GCC unroll 8
          for (size_t r = 0; r < R; ++r) {
            value[r] = V::broadcast(a[r * f.a_stride + 8 * i + k]);
          }
#pragma GCC unroll 8
          for (size_t w = 0; w < W; ++w) {
            const Float code = scale[w].times(words[w][i], k);
#pragma GCC unroll 8
            for (size_t r = 0; r < R; ++r) {
              sum[r][w] = V::multiply_add(value[r], code, sum[r][w]);
            }
          }
        }
      }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (size_t w = 0; w < W; ++w) {
        total[r][w] = total[r][w] + sum[r][w];
      }
    }
  }
  for (size_t r = 0; r < R; ++r) {
    float row[W * V::kLanes];
    for (size_t w = 0; w < W; ++w) {
      V::store(row + w * V::kLanes, total[r][w]);
    }
    __builtin_memcpy(f.c + r * f.c_stride + column, row, count * sizeof(float));
  }
}

template <typename V, size_t R, size_t W>
void multiply_range(const FewRows& f) {
  for (size_t column = f.begin; column < f.end; column += W * V::kLanes) {
    multiply_columns<V, R, W>(f, column);
  }
}

// Multiply with enough sums at once to hide the latency of each.
template <typename V, size_t R = 1>
void few_int4(const FewRows& f) {
  constexpr size_t kVectors = R == 1 ? V::kFewVectors : R == 2 ? V::kFewVectors / 2 : 1;
  if constexpr (R < V::kFewRows) {
    if (f.rows > R) {
      return few_int4<V, R + 1>(f);
    }
  }
  multiply_range<V, R, (kVectors > 1 ? kVectors : 1)>(f);
}

}  // namespace detail
}  // namespace kernels
}  // namespace zoexport
