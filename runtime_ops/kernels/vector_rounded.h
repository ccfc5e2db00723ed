// The kernels of rounded.h, on the vectors of vector_products.h and on D, the sums of products of integers:
//
//   D(offset)                  kLanes sums that begin at `offset`
//   add(Word, Four)            to each its 4 bytes of the word, 0 to 15, times those of Four: 8 times at most
//   load(const int8_t*)        a Four of 4 bytes of memory
//   total()                    the sums as Float
//   kRows, kPanels             rows that are multiplied by so many panels together, as registers allow; 1 or 2 panels
#pragma once

#include "rounded.h"
#include "vector_few_rows.h"

namespace zoexport {
namespace kernels {
namespace detail {

static_assert(kInt4 == kRoundedGroup, "a row's words of one group are loaded together");

// The bias of columns from `column` on, or 0 if there is no bias.
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
          dots[r].add(even, D::load(q + r * x.K + 8 * i));
          dots[r].add(odd, D::load(q + r * x.K + 8 * i + 4));
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

// Words per group: eight words of codes, the even codes of a word before the odd ones, and the scales.
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

// Codes of INT8 as numbers from 0 on.
struct Above128 {
  template <typename Word>
  static Word stored(Word codes) {
    return codes ^ 0x80808080u;
  }
};

// fill_rounded of INT8.
template <typename V, typename Codes>
void fill_bytes(const Int8Matrix& b, size_t column, float* panel) {
  typedef typename V::Float Float;
  typedef typename V::Word Word;
  const Rows<V, int8_t> rows(b.codes, b.K, column, b.N);
  float lanes[V::kLanes];
  for (size_t i = 0; i < V::kLanes; ++i) {
    lanes[i] = b.scales[column + i < b.N ? column + i : b.N - 1];
  }
  const Float scale = V::load(lanes);
  const int8_t* ahead = b.codes + (column + V::kLanes) * b.K;
  for (size_t p = 0; p < b.K; p += kRoundedGroup, panel += kWordsOfGroup * V::kLanes) {
    Word words[2][kFloats];
    V::load_columns(rows.begin, p, words[0]);
    V::load_columns(rows.begin, p + kRoundedGroup / 2, words[1]);
    for (size_t i = 0; i < V::kLanes * kRoundedGroup; i += kLine) {
      __builtin_prefetch(ahead + i, 0, 2);
    }
    ahead += V::kLanes * kRoundedGroup;
#pragma GCC unroll 4
    for (size_t i = 0; i < kFloats; ++i) {
      const Word a = words[i / 2][i % 2 * 2], c = words[i / 2][i % 2 * 2 + 1];
      const Word even = (a & 0xFFu) | ((a >> 8u) & 0xFF00u) | ((c & 0xFFu) << 16u) | ((c << 8u) & 0xFF000000u);
      const Word odd = ((a >> 8u) & 0xFFu) | ((a >> 16u) & 0xFF00u) | ((c << 8u) & 0xFF0000u) | (c & 0xFF000000u);
      V::store(panel + 2 * i * V::kLanes, (Float)Codes::stored(even));
      V::store(panel + (2 * i + 1) * V::kLanes, (Float)Codes::stored(odd));
    }
    V::store(panel + 2 * kFloats * V::kLanes, scale);
  }
}

// R rows by P panels.
template <typename V, typename D, size_t P, size_t R>
void multiply_panel(const RoundedLinear& product, size_t first, size_t column, const float* panel) {
  typedef typename V::Float Float;
  const RoundedRows& x = product.x;
  const size_t groups = x.K / kRoundedGroup, next = groups * kWordsOfGroup * V::kLanes;
  Float sum[P][R];
#pragma GCC unroll 2
  for (size_t p = 0; p < P; ++p) {
    const Float bias = load_bias<V>(product, column + p * V::kLanes);
#pragma GCC unroll 16
    for (size_t r = 0; r < R; ++r) {
      sum[p][r] = bias;
    }
  }
  const int8_t* q = x.codes + first * x.K;
  for (size_t g = 0; g < groups; ++g, panel += kWordsOfGroup * V::kLanes, q += kInt4) {
    const float* scales = x.scales + g * x.rows + first;
    const int32_t* offsets = x.offsets + g * x.rows + first;
    D dots[P][R];
#pragma GCC unroll 16
    for (size_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (size_t p = 0; p < P; ++p) {
        dots[p][r] = D(offsets[r]);
      }
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < 2 * kFloats; ++i) {
      typename V::Word codes[P];
#pragma GCC unroll 2
      for (size_t p = 0; p < P; ++p) {
        codes[p] = (typename V::Word)V::load(panel + p * next + i * V::kLanes);
      }
#pragma GCC unroll 16
      for (size_t r = 0; r < R; ++r) {
        const typename D::Four four = D::load(q + r * x.K + 4 * i);
#pragma GCC unroll 2
        for (size_t p = 0; p < P; ++p) {
          dots[p][r].add(codes[p], four);
        }
      }
    }
#pragma GCC unroll 2
    for (size_t p = 0; p < P; ++p) {
      const Float scale = V::load(panel + p * next + 2 * kFloats * V::kLanes);
#pragma GCC unroll 16
      for (size_t r = 0; r < R; ++r) {
        sum[p][r] = V::multiply_add(dots[p][r].total(), scale * V::broadcast(scales[r]), sum[p][r]);
      }
    }
  }
  for (size_t p = 0; p < P; ++p) {
    store_sums<V, R>(product, first, column + p * V::kLanes, sum[p]);
  }
}

template <typename V, typename D, size_t P, size_t R = 1>
void multiply_panel_rows(const RoundedLinear& product, size_t first, size_t count, size_t column, const float* panel) {
  if constexpr (R < D::kRows) {
    if (count > R) {
      return multiply_panel_rows<V, D, P, R + 1>(product, first, count, column, panel);
    }
  }
  multiply_panel<V, D, P, R>(product, first, column, panel);
}

template <typename V, typename D>
void multiply_panels(const RoundedLinear& product, size_t first, size_t count, size_t column, const float* panel,
                     size_t count_panels) {
  if constexpr (D::kPanels == 2) {
    if (count_panels == 2) {
      return multiply_panel_rows<V, D, 2>(product, first, count, column, panel);
    }
  }
  multiply_panel_rows<V, D, 1>(product, first, count, column, panel);
}

}  // namespace detail

// ByteDots: the D for products of bytes, which Codes converts to numbers that it can multiply.
template <typename V, typename D, typename ByteDots, typename Codes>
constexpr RoundedKernels rounded_kernels() {
  static_assert(D::kRows == ByteDots::kRows && D::kPanels == ByteDots::kPanels, "tasks are the same");
  return {V::kLanes,
          V::kFewRows,
          D::kRows,
          detail::multiply_rounded_rows<V, D>,
          D::kPanels,
          detail::kWordsOfGroup * V::kLanes,
          detail::fill_rounded<V>,
          detail::multiply_panels<V, D>,
          detail::fill_bytes<V, Codes>,
          detail::multiply_panels<V, ByteDots>};
}

}  // namespace kernels
}  // namespace zoexport
