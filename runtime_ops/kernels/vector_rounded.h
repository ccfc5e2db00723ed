// The kernels of rounded.h, on the vectors of vector_products.h and on D, the sums of products of integers:
//
//   D(offset)                  kLanes sums that begin at `offset`
//   add(Word, const int8_t*)   to each its 4 bytes of the word, 0 to 15, times the 4 bytes of memory: 8 times at most
//   total()                    the sums as Float
//   kRows                      rows that are multiplied by a panel together, as registers allow
#pragma once

#include "rounded.h"
#include "vector_few_rows.h"

namespace zoexport {
namespace kernels {
namespace detail {

static_assert(kInt4 == kRoundedGroup, "a row's words of one group are loaded together");

// The bias of columns from `column` on, 0 where there is none.
template <typename V>
typename V::Float load_bias(const RoundedLinear& product, size_t column) {
  float bias[V::kLanes] = {};
  for (size_t i = 0; product.bias != nullptr && i < V::kLanes && column + i < product.weight.N; ++i) {
    bias[i] = product.bias[column + i];
  }
  return V::load(bias);
}

// Rows of y from `first` on, of columns from `column` on as far as there are.
template <typename V, size_t R>
void store_sums(const RoundedLinear& product, size_t first, size_t column, const typename V::Float (&sums)[R]) {
  const size_t N = product.weight.N, left = N - column;
  float* y = product.y + first * N + column;
  if (left >= V::kLanes) {
#pragma GCC unroll 16
    for (size_t r = 0; r < R; ++r) {
      V::store(y + r * N, sums[r]);
    }
    return;
  }
  for (size_t r = 0; r < R; ++r) {
    float row[V::kLanes];
    V::store(row, sums[r]);
    __builtin_memcpy(y + r * N, row, left * sizeof(float));
  }
}

template <typename V, typename D, size_t R>
void multiply_rounded(const RoundedLinear& product, size_t first, size_t column) {
  typedef typename V::Float Float;
  typedef typename V::Word Word;
  const Int4Matrix& b = product.weight;
  const RoundedRows& x = product.x;
  const size_t groups = b.K / b.group_size;
  const Rows<V, uint8_t> codes(b.codes, b.K / 2, column, b.N);
  const Rows<V, uint16_t> scales(b.scales, groups, column, b.N);
  // Into the cache's second level: the first has few places for lines that are on their way.
  const uint8_t* ahead = b.codes + (column + 2 * V::kLanes) * (b.K / 2);
  const uint16_t* scales_ahead = b.scales + (column + V::kLanes) * groups;
  for (size_t i = 0; i < V::kLanes * groups; i += kLine / sizeof(uint16_t)) {
    __builtin_prefetch(scales_ahead + i);
  }
  const Float bias = load_bias<V>(product, column);
  Float sum[R];
#pragma GCC unroll 8
  for (size_t r = 0; r < R; ++r) {
    sum[r] = bias;
  }
  for (size_t begin = 0; begin < b.K; begin += kMaxDepth) {
    const size_t end = b.K - begin < kMaxDepth ? b.K : begin + kMaxDepth, group = begin / b.group_size;
    Word scale[kMostGroups];
    load_scales<V>(scales, group, (end - 1) / b.group_size + 1 - group, groups, scale);
    size_t left = (group + 1) * b.group_size - begin, of = 0;  // of the group; which one
    for (size_t p = begin; p < end; p += kInt4) {
      Word words[kFloats];
      V::load_columns(codes.begin, p / 2, words);
      for (size_t i = 0; i < V::kLanes * kBytes; i += kLine) {
        __builtin_prefetch(ahead + i, 0, 2);
      }
      ahead += V::kLanes * kBytes;
      const int8_t* q = x.codes + first * x.K + p;
      const size_t at = p / kRoundedGroup * x.rows + first;
      D dots[R];
#pragma GCC unroll 8
      for (size_t r = 0; r < R; ++r) {
        dots[r] = D(x.offsets[at + r]);
      }
#pragma GCC unroll 4
      for (size_t i = 0; i < kFloats; ++i) {
        const Word even = words[i] & 0x0F0F0F0Fu, odd = (words[i] >> 4u) & 0x0F0F0F0Fu;
#pragma GCC unroll 8
        for (size_t r = 0; r < R; ++r) {
          dots[r].add(even, q + r * x.K + 8 * i);
          dots[r].add(odd, q + r * x.K + 8 * i + 4);
        }
      }
#pragma GCC unroll 8
      for (size_t r = 0; r < R; ++r) {
        sum[r] = V::multiply_add(dots[r].total(), (Float)scale[of] * V::broadcast(x.scales[at + r]), sum[r]);
      }
      left -= kInt4;
      if (left == 0) {
        left = b.group_size;
        ++of;
      }
    }
  }
  store_sums<V, R>(product, first, column, sum);
}

template <typename V, typename D, size_t R = 1>
void multiply_rounded_rows(const RoundedLinear& product, size_t first, size_t count, size_t column) {
  if constexpr (R < V::kFewRows) {
    if (count > R) {
      return multiply_rounded_rows<V, D, R + 1>(product, first, count, column);
    }
  }
  multiply_rounded<V, D, R>(product, first, column);
}

// Of each group its eight words of codes, the even ones of a word before the odd ones, and its scales.
inline constexpr size_t kWordsOfGroup = 2 * kFloats + 1;

// Codes of a panel as they are in a weight, 0 to 15.
struct Unchanged {
  template <typename Word>
  static Word stored(Word codes) {
    return codes;
  }
};

template <typename V, typename Codes = Unchanged>
void fill_rounded(const Int4Matrix& b, size_t column, float* panel) {
  typedef typename V::Float Float;
  typedef typename V::Word Word;
  const size_t groups = b.K / b.group_size;
  const Rows<V, uint8_t> codes(b.codes, b.K / 2, column, b.N);
  const Rows<V, uint16_t> scales(b.scales, groups, column, b.N);
  // The next panel's, which come while this one is multiplied.
  const uint8_t* ahead = b.codes + (column + V::kLanes) * (b.K / 2);
  const uint16_t* scales_ahead = b.scales + (column + V::kLanes) * groups;
  for (size_t i = 0; i < V::kLanes * groups; i += kLine / sizeof(uint16_t)) {
    __builtin_prefetch(scales_ahead + i, 0, 2);
  }
  for (size_t begin = 0; begin < b.K; begin += kMaxDepth) {
    const size_t end = b.K - begin < kMaxDepth ? b.K : begin + kMaxDepth, group = begin / b.group_size;
    Word scale[kMostGroups];
    load_scales<V>(scales, group, (end - 1) / b.group_size + 1 - group, groups, scale);
    for (size_t p = begin; p < end; p += kInt4, panel += kWordsOfGroup * V::kLanes) {
      Word words[kFloats];
      V::load_columns(codes.begin, p / 2, words);
      for (size_t i = 0; i < V::kLanes * kBytes; i += kLine) {
        __builtin_prefetch(ahead + i, 0, 2);
      }
      ahead += V::kLanes * kBytes;
#pragma GCC unroll 4
      for (size_t i = 0; i < kFloats; ++i) {
        V::store(panel + 2 * i * V::kLanes, (Float)Codes::stored(words[i] & 0x0F0F0F0Fu));
        V::store(panel + (2 * i + 1) * V::kLanes, (Float)Codes::stored((words[i] >> 4u) & 0x0F0F0F0Fu));
      }
      V::store(panel + 2 * kFloats * V::kLanes, (Float)scale[p / b.group_size - group]);
    }
  }
}

template <typename V, typename D, size_t R>
void multiply_panel(const RoundedLinear& product, size_t first, size_t column, const float* panel) {
  typedef typename V::Float Float;
  const RoundedRows& x = product.x;
  const Float bias = load_bias<V>(product, column);
  Float sum[R];
#pragma GCC unroll 16
  for (size_t r = 0; r < R; ++r) {
    sum[r] = bias;
  }
  const int8_t* q = x.codes + first * x.K;
  for (size_t g = 0; g < x.K / kRoundedGroup; ++g, panel += kWordsOfGroup * V::kLanes, q += kInt4) {
    const float* scales = x.scales + g * x.rows + first;
    const int32_t* offsets = x.offsets + g * x.rows + first;
    D dots[R];
#pragma GCC unroll 16
    for (size_t r = 0; r < R; ++r) {
      dots[r] = D(offsets[r]);
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < 2 * kFloats; ++i) {
      const typename V::Word codes = (typename V::Word)V::load(panel + i * V::kLanes);
#pragma GCC unroll 16
      for (size_t r = 0; r < R; ++r) {
        dots[r].add(codes, q + r * x.K + 4 * i);
      }
    }
    const Float scale = V::load(panel + 2 * kFloats * V::kLanes);
#pragma GCC unroll 16
    for (size_t r = 0; r < R; ++r) {
      sum[r] = V::multiply_add(dots[r].total(), scale * V::broadcast(scales[r]), sum[r]);
    }
  }
  store_sums<V, R>(product, first, column, sum);
}

template <typename V, typename D, size_t R = 1>
void multiply_panel_rows(const RoundedLinear& product, size_t first, size_t count, size_t column, const float* panel) {
  if constexpr (R < D::kRows) {
    if (count > R) {
      return multiply_panel_rows<V, D, R + 1>(product, first, count, column, panel);
    }
  }
  multiply_panel<V, D, R>(product, first, column, panel);
}

}  // namespace detail

template <typename V, typename D>
constexpr RoundedKernels rounded_kernels() {
  return {V::kLanes,
          V::kFewRows,
          D::kRows,
          detail::multiply_rounded_rows<V, D>,
          detail::kWordsOfGroup * V::kLanes,
          detail::fill_rounded<V>,
          detail::multiply_panel_rows<V, D>};
}

}  // namespace kernels
}  // namespace zoexport
