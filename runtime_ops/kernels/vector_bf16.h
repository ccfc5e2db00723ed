// The kernels of tiled.h for numbers that are rounded to bfloat16, on the vectors of an instruction set that multiplies
// pairs of them. In addition to the requirements of vector_products.h, a type V of vectors has:
//
//   rounded_pairs(a, b)        a word for each lane: a's number, rounded to nearest even, in the lower half, b's above
//   store_rounded(to, a, b)    a's numbers, then b's, rounded
//   dot(sum, a, b)             sum + the products of the lower halves and of the upper ones, in float32
//
// vector_products.h explains the location of V and these functions.
#pragma once

#include "tiled.h"
#include "vector_products.h"

namespace zoexport {
namespace kernels {
namespace {

constexpr size_t kPairsBelow = 2 * kTile;  // numbers from one pair of the depth to the next

// Return where a panel of `parts` has the numbers of columns `unit` .. and of the pair of the depth at p.
uint16_t* pair_at(uint16_t* packed, const Part& part, size_t parts, size_t unit, size_t p) {
  const size_t tile = p / kTileDepth * (part.width / kTile) + unit / kTile;
  return packed + tile * parts * kTileNumbers + p % kTileDepth / 2 * kPairsBelow + unit % kTile * 2;
}

// Zero the part of a panel past its depth.
void clear_end(const Part& part, size_t parts, uint16_t* packed) {
  const size_t begin = part.depth / kTileDepth * kTileDepth;
  if (begin < part.depth) {
    __builtin_memset(pair_at(packed, part, parts, 0, begin), 0,
                     part.width / kTile * parts * kTileNumbers * sizeof(uint16_t));
  }
}

}  // namespace

namespace detail {

template <typename V>
void round_rows(const float* a, size_t stride, size_t rows, size_t depth, const float*, uint16_t* packed) {
  const size_t steps = (depth + kTileDepth - 1) / kTileDepth;
  for (size_t r = 0; r < (rows + kTile - 1) / kTile * kTile; ++r) {
    uint16_t* out = packed + r / kTile * steps * kTileNumbers + r % kTile * kTileDepth;
    for (size_t p = 0; p < depth; p += kTileDepth, out += kTileNumbers) {
      if (r >= rows) {
        __builtin_memset(out, 0, kTileDepth * sizeof(uint16_t));
        continue;
      }
      const float* from = a + r * stride + p;
      float end[kTileDepth] = {};
      if (p + kTileDepth > depth) {
        __builtin_memcpy(end, from, (depth - p) * sizeof(float));
        from = end;
      }
      for (size_t i = 0; i < kTileDepth; i += 2 * V::kLanes) {
        V::store_rounded(out + i, V::load(from + i), V::load(from + i + V::kLanes));
      }
    }
  }
}

template <typename V>
void store_pairs(typename V::Float first, typename V::Float second, uint16_t* out) {
  const typename V::Word pairs = V::rounded_pairs(first, second);
  __builtin_memcpy(out, &pairs, sizeof(pairs));
}

// Return a `put` for unpackings, which call it for one row of B after the other: it stores the rows in pairs.
template <typename V, typename Value>
auto put_rounded(const Part& part, uint16_t* packed, Value value) {
  typedef typename V::Float Float;
  return [part, packed, value, first = Float{}](size_t, size_t unit, size_t p, size_t i, typename V::Word code,
                                                Float scale) mutable {
    const Float row = value(code) * scale;
    if (i % 2 == 1) {
      store_pairs<V>(first, row, pair_at(packed, part, 1, unit, p + i - 1));
    } else if (p + i + 1 == part.depth) {
      store_pairs<V>(row, Float{}, pair_at(packed, part, 1, unit, p + i));
    }
    first = row;
  };
}

template <typename V>
void round_int4_transposed(Int4Matrix b, Part part, uint16_t* packed) {
  unpack_int4_transposed<V>(b, part,
                            put_rounded<V>(part, packed, [](typename V::Word code) { return V::int4_values(code); }));
}

template <typename V>
void round_int8_transposed(Int8Matrix b, Part part, uint16_t* packed) {
  clear_end(part, 1, packed);
  unpack_int8_transposed<V>(b, part,
                            put_rounded<V>(part, packed, [](typename V::Word code) { return V::to_float(code); }));
}

template <typename V>
void round_int4(Int4Matrix b, Part part, uint16_t* packed) {
  clear_end(part, 1, packed);
  const size_t groups = b.K / b.group_size, row_bytes = b.K / 2;
  const uint8_t* codes = b.codes + part.first * row_bytes + part.column / 2;
  const uint16_t* scales = b.scales + part.first * groups + part.column / b.group_size;  // a panel lies in one group
  const auto numbers = [](const uint8_t* from, uint16_t scale) {
    const uint32_t bits = static_cast<uint32_t>(scale) << 16;
    return V::int4_values(V::spread_int4(from)) * (typename V::Float)(typename V::Word{} + bits);
  };
  for (size_t p = 0; p < part.depth; p += 2, codes += 2 * row_bytes, scales += 2 * groups) {
    for (size_t unit = 0; unit < part.width; unit += V::kLanes) {
      const typename V::Float second =
          p + 1 < part.depth ? numbers(codes + row_bytes + unit / 2, scales[groups]) : typename V::Float{};
      store_pairs<V>(numbers(codes + unit / 2, scales[0]), second, pair_at(packed, part, 1, unit, p));
    }
  }
}

template <typename V>
void round_int8(Int8Matrix b, Part part, uint16_t* packed) {
  clear_end(part, 1, packed);
  for (size_t p = 0; p < part.depth; p += 2) {
    for (size_t unit = 0; unit < part.width; unit += V::kLanes) {
      const size_t left = part.count > unit ? part.count - unit : 0, count = left < V::kLanes ? left : V::kLanes;
      const auto numbers = [&](size_t row) {
        const int8_t* from = b.codes + row * b.K + part.column + unit;
        int8_t some[V::kLanes] = {};
        if (count < V::kLanes) {
          __builtin_memcpy(some, from, count);
          from = some;
        }
        return V::to_float(V::spread_int8(from)) * V::broadcast(b.scales[row]);
      };
      const typename V::Float second = p + 1 < part.depth ? numbers(part.first + p + 1) : typename V::Float{};
      store_pairs<V>(numbers(part.first + p), second, pair_at(packed, part, 1, unit, p));
    }
  }
}

// Rows whose sums stay in registers, for W vectors of columns.
inline constexpr size_t kPairRows = 8;
static_assert(kTile % kPairRows == 0, "rows of a tile are whole groups");

template <typename V, size_t W>
void multiply_pairs(const TiledBlock& block, size_t row, size_t column) {
  typedef typename V::Float Float;
  typedef typename V::Word Word;
  const size_t tiles = (block.count + kTile - 1) / kTile;
  const uint16_t* a = block.a + row / kTile * block.steps * kTileNumbers + row % kTile * kTileDepth;
  const uint16_t* b[W];
  for (size_t w = 0; w < W; ++w) {
    const size_t first = column + w * V::kLanes;
    b[w] = block.b + first / kTile * kTileNumbers + first % kTile * 2;
  }
  Float sums[kPairRows][W] = {};
  for (size_t step = 0; step < block.steps; ++step, a += kTileNumbers) {
    for (size_t pair = 0; pair < kTileDepth / 2; ++pair) {
      Word columns[W];
#pragma GCC unroll 4
      for (size_t w = 0; w < W; ++w) {
        __builtin_memcpy(&columns[w], b[w] + step * tiles * kTileNumbers + pair * kPairsBelow, sizeof(Word));
      }
#pragma GCC unroll 8
      for (size_t r = 0; r < kPairRows; ++r) {
        uint32_t numbers;
        __builtin_memcpy(&numbers, a + r * kTileDepth + 2 * pair, sizeof(numbers));
#pragma GCC unroll 4
        for (size_t w = 0; w < W; ++w) {
          sums[r][w] = V::dot(sums[r][w], Word{} + numbers, columns[w]);
        }
      }
    }
  }
  const size_t rows = block.rows - row < kPairRows ? block.rows - row : kPairRows;
  const size_t columns = block.count - column < W * V::kLanes ? block.count - column : W * V::kLanes;
  for (size_t r = 0; r < rows; ++r) {
    float sum[W * V::kLanes];
    __builtin_memcpy(sum, sums[r], sizeof(sum));
    const float* before = block.before == nullptr ? nullptr : block.before + (row + r) * block.before_stride + column;
    float* out = block.c + (row + r) * block.c_stride + column;
    for (size_t j = 0; j < columns; ++j) {
      out[j] = (before == nullptr ? 0.0f : before[j]) + sum[j];
    }
  }
}

template <typename V>
void multiply_rounded(const TiledBlock& block) {
  constexpr size_t kBoth = 2 * V::kLanes;
  for (size_t row = 0; row < block.rows; row += kPairRows) {
    for (size_t column = 0; column < block.count; column += kBoth) {
      if (block.count - column > V::kLanes) {
        multiply_pairs<V, 2>(block, row, column);
      } else {
        multiply_pairs<V, 1>(block, row, column);
      }
    }
  }
}

}  // namespace detail

template <typename V>
constexpr TiledKernels rounded_tiles() {
  return {1,
          detail::round_rows<V>,
          nullptr,
          nullptr,
          detail::round_int4<V>,
          detail::round_int4_transposed<V>,
          detail::round_int8<V>,
          detail::round_int8_transposed<V>,
          detail::multiply_rounded<V>};
}

// vector_kernels<V>, and `tiles` for rounded numbers.
template <typename V>
constexpr ProductKernels bf16_kernels(const TiledKernels* tiles) {
  ProductKernels kernels = vector_kernels<V>();
  kernels.bf16 = tiles;
  return kernels;
}

}  // namespace kernels
}  // namespace zoexport
