// The kernels of product_variants.h on the vectors of an instruction set. A file that is compiled for one describes its
// vectors by a type V and lists vector_kernels<V>.
//
//   kLanes, kRows, kVectors    lanes of a vector; a tile is kRows by kVectors vectors,
//   kNarrowRows                or kNarrowRows by one: a multiple of the lanes, as packing then is fastest
//   Float, Word                vectors of float and of uint32_t, with the operators of GCC and clang
//   load, store, broadcast     of floats at any address
//   multiply_add(a, b, c)      a * b + c
//   to_float(word)             of the lanes as int32_t
//   greatest(a, b)             the greater float; where one is no number, any of both
//   load_columns(rows, offset, out)    out[i] = element i of the 16 bytes at rows[lane] + offset, as uint32_t
//   int4_values(word)          q of the codes in the low 4 bits of the lanes
//   spread_int4(codes)         kLanes codes, one a lane, in its low 4 bits; the others are any
//   spread_int8(codes)         kLanes codes, one a lane, as int32_t
//
// V lies in an anonymous namespace and these files call no inline function that others may call, for the reason that
// rng/vector_noise.h gives. cmake/check_no_weak_symbols.cmake looks at the symbols.
#pragma once

#include "product_variants.h"
#include "vector_attention.h"
#include "vector_few_rows.h"
#include "vector_rows.h"
#include "vector_softmax.h"

namespace zoexport {
namespace kernels {
namespace detail {

template <typename V>
void pack_rows(const float* a, size_t row_stride, size_t rows, size_t depth, float* packed) {
  constexpr size_t kGroups = V::kNarrowRows / V::kLanes;
  const size_t groups = (rows + V::kLanes - 1) / V::kLanes;
  const char* begin[kGroups][V::kLanes];
  for (size_t r = 0; r < kGroups * V::kLanes; ++r) {
    begin[r / V::kLanes][r % V::kLanes] = reinterpret_cast<const char*>(a + (r < rows ? r : rows - 1) * row_stride);
  }
  size_t p = 0;
  for (; p + kFloats <= depth; p += kFloats) {
    typename V::Word column[kGroups][kFloats];
    for (size_t g = 0; g < groups; ++g) {
      V::load_columns(begin[g], p * sizeof(float), column[g]);
    }
    // In ascending order, as each store may run into what the next one writes.
    for (size_t i = 0; i < kFloats; ++i) {
      for (size_t g = 0; g < groups; ++g) {
        V::store(packed + (p + i) * rows + g * V::kLanes, (typename V::Float)column[g][i]);
      }
    }
  }
  for (; p < depth; ++p) {
    for (size_t r = 0; r < rows; ++r) {
      packed[p * rows + r] = a[r * row_stride + p];
    }
  }
}

template <typename V>
void fill_float(FloatMatrix b, Part part, float* panel) {
  for (size_t p = 0; p < part.depth; ++p) {
    const float* row = b.values + (part.first + p) * b.stride + part.column;
    float* out = panel + p * part.width;
    size_t j = 0;
    for (; j + V::kLanes <= part.count; j += V::kLanes) {
      V::store(out + j, V::load(row + j));
    }
    for (; j < part.width; ++j) {
      out[j] = j < part.count ? row[j] : 0.0f;
    }
  }
}

template <typename V>
void fill_float_transposed(FloatMatrix b, Part part, float* panel) {
  for (size_t unit = 0; unit < part.width; unit += V::kLanes) {
    const Rows<V, float> rows(b.values + part.first, b.stride, part.column + unit, part.column + part.count);
    float* out = panel + unit;
    size_t p = 0;
    for (; p + kFloats <= part.depth; p += kFloats) {
      typename V::Word column[kFloats];
      V::load_columns(rows.begin, p * sizeof(float), column);
      for (size_t i = 0; i < kFloats; ++i) {
        V::store(out + (p + i) * part.width, (typename V::Float)column[i]);
      }
    }
    for (; p < part.depth; ++p) {
      for (size_t i = 0; i < V::kLanes; ++i) {
        out[p * part.width + i] = reinterpret_cast<const float*>(rows.begin[i])[p];
      }
    }
  }
}

template <typename V>
void fill_int4(Int4Matrix b, Part part, float* panel) {
  const size_t groups = b.K / b.group_size;
  const uint8_t* codes = b.codes + part.first * (b.K / 2) + part.column / 2;
  const uint16_t* scales = b.scales + part.first * groups + part.column / b.group_size;  // a panel lies in one group
  for (size_t p = 0; p < part.depth; ++p) {
    const uint32_t bits = static_cast<uint32_t>(*scales) << 16;
    const typename V::Float scale = (typename V::Float)(typename V::Word{} + bits);
    for (size_t j = 0; j < part.width; j += V::kLanes) {
      V::store(panel + j, V::int4_values(V::spread_int4(codes + j / 2)) * scale);
    }
    codes += b.K / 2;
    scales += groups;
    panel += part.width;
  }
}

// Calls put(at, unit, p, i, code, scale) for the lanes of columns from `unit` on of a part, row p + i of it, which a
// panel has from `at` on: p a multiple of 32, i below 32; the code lies in the low 4 bits of the lanes, the others are
// any. put holds what it needs by value: what it refers to would be read again after every store.
template <typename V, typename Put>
void unpack_int4_transposed(Int4Matrix b, Part part, Put put) {
  const size_t groups = b.K / b.group_size, first_group = part.first / b.group_size;
  const size_t end_group = (part.first + part.depth - 1) / b.group_size + 1;
  for (size_t unit = 0; unit < part.width; unit += V::kLanes) {
    const size_t column = part.column + unit, end = part.column + part.count;
    uint32_t scales[kMaxDepth / kInt4 + 1][V::kLanes];
    for (size_t i = 0; i < V::kLanes; ++i) {
      const uint16_t* row = b.scales + (column + i < end ? column + i : end - 1) * groups;
      for (size_t group = first_group; group < end_group; ++group) {
        scales[group - first_group][i] = static_cast<uint32_t>(row[group]) << 16;
      }
    }
    const Rows<V, uint8_t> rows(b.codes + part.first / 2, b.K / 2, column, end);
    size_t at = unit;
    for (size_t p = 0; p < part.depth; p += kInt4) {
      typename V::Float scale;
      __builtin_memcpy(&scale, scales[(part.first + p) / b.group_size - first_group], sizeof(scale));
      typename V::Word words[kFloats];
      V::load_columns(rows.begin, p / 2, words);
#pragma GCC unroll 4
      for (size_t i = 0; i < kFloats; ++i) {
#pragma GCC unroll 8
        for (size_t k = 0; k < 8; ++k) {
          put(at, unit, p, 8 * i + k, words[i] >> static_cast<uint32_t>(4 * k), scale);
          at += part.width;
        }
      }
    }
  }
}

template <typename V>
void fill_int4_transposed(Int4Matrix b, Part part, float* panel) {
  typedef typename V::Float Float;
  unpack_int4_transposed<V>(b, part, [panel](size_t at, size_t, size_t, size_t, typename V::Word code, Float scale) {
    V::store(panel + at, V::int4_values(code) * scale);
  });
}

template <typename V>
void fill_int8(Int8Matrix b, Part part, float* panel) {
  for (size_t p = 0; p < part.depth; ++p) {
    const int8_t* codes = b.codes + (part.first + p) * b.K + part.column;
    const float scale = b.scales[part.first + p];
    float* out = panel + p * part.width;
    size_t j = 0;
    for (; j + V::kLanes <= part.count; j += V::kLanes) {
      V::store(out + j, V::to_float(V::spread_int8(codes + j)) * V::broadcast(scale));
    }
    for (; j < part.width; ++j) {
      out[j] = j < part.count ? static_cast<float>(codes[j]) * scale : 0.0f;
    }
  }
}

// The same of INT8: p is a multiple of 16, i below 16, and the code the lanes as int32_t.
template <typename V, typename Put>
void unpack_int8_transposed(Int8Matrix b, Part part, Put put) {
  for (size_t unit = 0; unit < part.width; unit += V::kLanes) {
    const size_t column = part.column + unit, end = part.column + part.count;
    const Rows<V, int8_t> rows(b.codes + part.first, b.K, column, end);
    typename V::Float scale = {};
    for (size_t i = 0; i < V::kLanes; ++i) {
      scale[i] = b.scales[column + i < end ? column + i : end - 1];
    }
    size_t p = 0, at = unit;
    for (; p + kInt8 <= part.depth; p += kInt8) {
      typename V::Word words[kFloats];
      V::load_columns(rows.begin, p, words);
#pragma GCC unroll 16
      for (size_t i = 0; i < kInt8; ++i) {
        // Adding and taking away 128 gives the byte its sign.
        const typename V::Word byte = (words[i / 4] >> static_cast<uint32_t>(8 * (i % 4))) & 255u;
        put(at, unit, p, i, (byte ^ 128u) - 128u, scale);
        at += part.width;
      }
    }
    for (size_t i = 0; p + i < part.depth; ++i) {
      typename V::Word code = {};
      for (size_t lane = 0; lane < V::kLanes; ++lane) {
        code[lane] = static_cast<uint32_t>(int32_t{reinterpret_cast<const int8_t*>(rows.begin[lane])[p + i]});
      }
      put(at, unit, p, i, code, scale);
      at += part.width;
    }
  }
}

template <typename V>
void fill_int8_transposed(Int8Matrix b, Part part, float* panel) {
  typedef typename V::Float Float;
  unpack_int8_transposed<V>(b, part, [panel](size_t at, size_t, size_t, size_t, typename V::Word code, Float scale) {
    V::store(panel + at, V::to_float(code) * scale);
  });
}

// R rows and W vectors: R * W sums stay in registers.
template <typename V, size_t R, size_t W>
void multiply_tile(const Tile& t) {
  typedef typename V::Float Float;
  const float* a = t.a;
  const float* b = t.panel;
  Float sum[R][W];
#pragma GCC unroll 16
  for (size_t r = 0; r < R; ++r) {
    __builtin_prefetch(t.c + r * t.c_stride, 1);
    __builtin_prefetch(t.c + r * t.c_stride + t.count - 1, 1);
#pragma GCC unroll 4
    for (size_t w = 0; w < W; ++w) {
      sum[r][w] = Float{};
    }
  }
  for (size_t p = 0; p < t.depth; ++p) {
    Float column[W];
#pragma GCC unroll 4
    for (size_t w = 0; w < W; ++w) {
      column[w] = V::load(b + w * V::kLanes);
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < R; ++r) {
      const Float value = V::broadcast(a[r]);
#pragma GCC unroll 4
      for (size_t w = 0; w < W; ++w) {
        sum[r][w] = V::multiply_add(value, column[w], sum[r][w]);
      }
    }
    a += t.a_stride;
    b += t.panel_stride;
  }
  if (t.count == W * V::kLanes) {
#pragma GCC unroll 16
    for (size_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (size_t w = 0; w < W; ++w) {
        const size_t at = w * V::kLanes;
        const Float before = t.before == nullptr ? Float{} : V::load(t.before + r * t.before_stride + at);
        V::store(t.c + r * t.c_stride + at, before + sum[r][w]);
      }
    }
    return;
  }
  float row[W * V::kLanes];
#pragma GCC unroll 16
  for (size_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (size_t w = 0; w < W; ++w) {
      V::store(row + w * V::kLanes, sum[r][w]);
    }
    for (size_t j = 0; j < t.count; ++j) {
      const float before = t.before == nullptr ? 0.0f : t.before[r * t.before_stride + j];
      t.c[r * t.c_stride + j] = before + row[j];
    }
  }
}

template <typename V, size_t W, size_t R = (W == 1 ? V::kNarrowRows : V::kRows)>
void multiply_rows(const Tile& tile) {
  if constexpr (R > 1) {
    if (tile.rows < R) {
      return multiply_rows<V, W, R - 1>(tile);
    }
  }
  multiply_tile<V, R, W>(tile);
}

template <typename V, size_t W = V::kVectors>
void multiply(const Tile& tile) {
  if constexpr (W > 1) {
    if (tile.count <= (W - 1) * V::kLanes) {
      return multiply<V, W - 1>(tile);
    }
  }
  multiply_rows<V, W>(tile);
}

}  // namespace detail

template <typename V>
constexpr ProductKernels vector_kernels() {
  return {V::kRows,
          V::kNarrowRows,
          V::kLanes,
          V::kVectors * V::kLanes,
          detail::pack_rows<V>,
          detail::fill_float<V>,
          detail::fill_float_transposed<V>,
          detail::fill_int4<V>,
          detail::fill_int4_transposed<V>,
          detail::fill_int8<V>,
          detail::fill_int8_transposed<V>,
          detail::multiply<V>,
          V::kFewRows,
          V::kFewVectors * V::kLanes,
          detail::few_int4<V>,
          detail::dots<V>,
          detail::add_rows<V>,
          detail::online_softmax<V>,
          detail::softmax_gradient<V>};
}

}  // namespace kernels
}  // namespace zoexport
