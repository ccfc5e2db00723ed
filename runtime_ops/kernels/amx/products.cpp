// The kernels of tiled.h with AMX. Compiled with -mamx-tile -mamx-bf16 and the flags of AVX-512 and its bfloat16.
#include "kernels/amx/tiles.h"
#include "kernels/avx512/bf16.h"
#include "kernels/vector_bf16.h"

namespace zoexport {
namespace kernels {
namespace {

static_assert(kTile == kTileRows && kTileDepth * sizeof(uint16_t) == kTileRowBytes, "a tile is 16 rows of 64 bytes");

// Tiles 0 to 3 are sums, of rows and columns of tiles; 4 and 5 are A's, 6 and 7 B's.
#define ZO_A 4
#define ZO_NEXT_A 5
#define ZO_B 6
#define ZO_NEXT_B 7

TileShapes all_tiles() {
  TileShapes shapes;
  for (size_t tile = 0; tile < 8; ++tile) {
    shapes.set(tile, kTileRows, kTileRowBytes);
  }
  return shapes;
}

constexpr size_t kParts = 3;  // of a float32

// Leading bits of 32 numbers, in their order; what is left of them stays.
__m512i take_parts(__m512& first, __m512& second) {
  const __m512i cut = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  // The upper halves of both, one after the other.
  const __m512i halves = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                                          25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  const __m512i parts = _mm512_permutex2var_epi16(_mm512_castps_si512(first), halves, _mm512_castps_si512(second));
  first = _mm512_sub_ps(first, _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(first), cut)));
  second = _mm512_sub_ps(second, _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(second), cut)));
  return parts;
}

// The same, as pairs (first, second) of each lane.
__m512i take_pairs(__m512& first, __m512& second) {
  const __m512i cut = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  const __m512i high_first = _mm512_and_si512(_mm512_castps_si512(first), cut);
  const __m512i high_second = _mm512_and_si512(_mm512_castps_si512(second), cut);
  first = _mm512_sub_ps(first, _mm512_castsi512_ps(high_first));
  second = _mm512_sub_ps(second, _mm512_castsi512_ps(high_second));
  return _mm512_or_si512(_mm512_srli_epi32(high_first, 16), high_second);
}

__mmask16 lanes_below(size_t count) { return static_cast<__mmask16>(count >= kTile ? 0xFFFFu : (1u << count) - 1u); }

void store_parts(__m512 first, __m512 second, uint16_t* out) {
#pragma GCC unroll 3
  for (size_t part = 0; part < kParts; ++part) {
    _mm512_store_si512(out + part * kTileNumbers, take_parts(first, second));
  }
}

void pack_rows(const float* a, size_t stride, size_t rows, size_t depth, const float* scales, uint16_t* packed) {
  constexpr size_t kStep = kParts * kTileNumbers;
  const size_t steps = (depth + kTileDepth - 1) / kTileDepth, whole = depth / kTileDepth * kTileDepth;
  const size_t left = depth - whole, after = left < kTile ? 0 : kTile;  // numbers past the whole steps, in two vectors
  const __mmask16 low = lanes_below(left), high = lanes_below(left - after == left ? 0 : left - after);
  for (size_t r = 0; r < (rows + kTile - 1) / kTile * kTile; ++r) {
    uint16_t* out = packed + r / kTile * steps * kStep + r % kTile * kTileDepth;
    if (r >= rows) {
      for (size_t step = 0; step < steps; ++step, out += kStep) {
        store_parts(__m512{}, __m512{}, out);
      }
      continue;
    }
    const float* row = a + r * stride;
    for (size_t p = 0; p < whole; p += kTileDepth, out += kStep) {
      __m512 first = _mm512_loadu_ps(row + p), second = _mm512_loadu_ps(row + p + kTile);
      if (scales != nullptr) {
        first = _mm512_mul_ps(first, _mm512_loadu_ps(scales + p));
        second = _mm512_mul_ps(second, _mm512_loadu_ps(scales + p + kTile));
      }
      store_parts(first, second, out);
    }
    if (left > 0) {
      __m512 first = _mm512_maskz_loadu_ps(low, row + whole);
      __m512 second = _mm512_maskz_loadu_ps(high, row + whole + after);
      if (scales != nullptr) {
        first = _mm512_mul_ps(first, _mm512_maskz_loadu_ps(low, scales + whole));
        second = _mm512_mul_ps(second, _mm512_maskz_loadu_ps(high, scales + whole + after));
      }
      store_parts(first, second, out);
    }
  }
}

template <size_t P>
void store_pairs(__m512 first, __m512 second, uint16_t* out) {
#pragma GCC unroll 3
  for (size_t part = 0; part < P; ++part) {
    _mm512_store_si512(out + part * kTileNumbers, take_pairs(first, second));
  }
}

// Return a `put` for unpackings, which call it for one row of B after the other: it stores the rows in pairs.
template <size_t P, typename Value>
auto put_pairs(const Part& part, uint16_t* packed, Value value) {
  return [part, packed, value, first = __m512{}](size_t, size_t unit, size_t p, size_t i, Avx512::Word code,
                                                 Avx512::Float scale) mutable {
    const __m512 row = (__m512)value(code, scale);
    if (i % 2 == 1) {
      store_pairs<P>(first, row, pair_at(packed, part, P, unit, p + i - 1));
    } else if (p + i + 1 == part.depth) {
      store_pairs<P>(row, __m512{}, pair_at(packed, part, P, unit, p + i));
    }
    first = row;
  };
}

void pack_int4_transposed(Int4Matrix b, Part part, uint16_t* packed) {
  detail::unpack_int4_transposed<Avx512>(b, part,
                                         put_pairs<2>(part, packed, [](Avx512::Word code, Avx512::Float scale) {
                                           return Avx512::int4_values(code) * scale;
                                         }));
}

void pack_int8_transposed(Int8Matrix b, Part part, uint16_t* packed) {
  clear_end(part, 1, packed);
  detail::unpack_int8_transposed<Avx512>(
      b, part, put_pairs<1>(part, packed, [](Avx512::Word code, Avx512::Float) { return Avx512::to_float(code); }));
}

// A row has one scale here, so all numbers that its codes can stand for are made once, and looked up.
void pack_int4(Int4Matrix b, Part part, uint16_t* packed) {
  clear_end(part, 2, packed);
  const size_t groups = b.K / b.group_size, row_bytes = b.K / 2;
  const uint8_t* codes = b.codes + part.first * row_bytes + part.column / 2;
  const uint16_t* scales = b.scales + part.first * groups + part.column / b.group_size;
  const auto numbers = [](uint16_t scale) {
    const Avx512::Word all = (Avx512::Word)_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return (__m512)(Avx512::int4_values(all) * (Avx512::Float)(Avx512::Word{} + (static_cast<uint32_t>(scale) << 16)));
  };
  for (size_t p = 0; p < part.depth; p += 2, codes += 2 * row_bytes, scales += 2 * groups) {
    const bool two = p + 1 < part.depth;
    const uint8_t* next = two ? codes + row_bytes : codes;
    __m512 first = numbers(scales[0]), second = two ? numbers(scales[groups]) : __m512{};
    const __m512i leading = take_parts(first, second), rest = take_parts(first, second);
    for (size_t unit = 0; unit < part.width; unit += kTile) {
      const Avx512::Word low = Avx512::spread_int4(codes + unit / 2) & 15u;
      const Avx512::Word high = ((Avx512::spread_int4(next + unit / 2) & 15u) + 16u) << 16u;
      uint16_t* out = pair_at(packed, part, 2, unit, p);
      _mm512_store_si512(out, _mm512_permutexvar_epi16((__m512i)(low | high), leading));
      _mm512_store_si512(out + kTileNumbers, _mm512_permutexvar_epi16((__m512i)(low | high), rest));
    }
  }
}

void pack_int8(Int8Matrix b, Part part, uint16_t* packed) {
  clear_end(part, 1, packed);
  for (size_t p = 0; p < part.depth; p += 2) {
    const int8_t* row = b.codes + (part.first + p) * b.K + part.column;
    for (size_t unit = 0; unit < part.width; unit += kTile) {
      const size_t left = part.count - unit, count = left < kTile ? left : kTile;
      const auto codes = [&](const int8_t* from) {
        int8_t some[kTile] = {};
        if (count < kTile) {
          __builtin_memcpy(some, from, count);
          from = some;
        }
        return (__m512)Avx512::to_float(Avx512::spread_int8(from));
      };
      const __m512 second = p + 1 < part.depth ? codes(row + b.K + unit) : __m512{};
      store_pairs<1>(codes(row + unit), second, pair_at(packed, part, 1, unit, p));
    }
  }
}

void pack_float(FloatMatrix b, Part part, uint16_t* packed) {
  clear_end(part, 3, packed);
  for (size_t p = 0; p < part.depth; p += 2) {
    const float* row = b.values + (part.first + p) * b.stride + part.column;
    for (size_t unit = 0; unit < part.width; unit += kTile) {
      const __mmask16 lanes = lanes_below(part.count - unit);
      const __m512 second = p + 1 < part.depth ? _mm512_maskz_loadu_ps(lanes, row + b.stride + unit) : __m512{};
      store_pairs<3>(_mm512_maskz_loadu_ps(lanes, row + unit), second, pair_at(packed, part, 3, unit, p));
    }
  }
}

void pack_float_transposed(FloatMatrix b, Part part, uint16_t* packed) {
  clear_end(part, 3, packed);
  const size_t end = part.column + part.count;
  for (size_t unit = 0; unit < part.width; unit += kTile) {
    const detail::Rows<Avx512, float> rows(b.values + part.first, b.stride, part.column + unit, end);
    for (size_t p = 0; p < part.depth; p += detail::kFloats) {
      Avx512::Word column[detail::kFloats] = {};
      if (p + detail::kFloats <= part.depth) {
        Avx512::load_columns(rows.begin, p * sizeof(float), column);
      } else {
        for (size_t i = 0; p + i < part.depth; ++i) {
          for (size_t lane = 0; lane < kTile; ++lane) {
            uint32_t word;
            __builtin_memcpy(&word, rows.begin[lane] + (p + i) * sizeof(float), sizeof(word));
            column[i][lane] = word;
          }
        }
      }
      for (size_t i = 0; i < detail::kFloats && p + i < part.depth; i += 2) {
        store_pairs<3>((__m512)column[i], (__m512)column[i + 1], pair_at(packed, part, 3, unit, p + i));
      }
    }
  }
}

// M and N tiles of rows and columns; the numbers of tiles are part of the instructions.
template <size_t M, size_t N>
struct Steps {
  const uint16_t* a;  // of a step
  size_t a_tile;      // numbers from one tile of rows to the next
  const uint16_t* b;
  size_t b_tile;

  void load_a(size_t part) const {
    _tile_loadd(ZO_A, a + part * kTileNumbers, kTileRowBytes);
    if constexpr (M == 2) {
      _tile_loadd(ZO_NEXT_A, a + a_tile + part * kTileNumbers, kTileRowBytes);
    }
  }
  void load_b(size_t part) const {
    _tile_loadd(ZO_B, b + part * kTileNumbers, kTileRowBytes);
    if constexpr (N == 2) {
      _tile_loadd(ZO_NEXT_B, b + b_tile + part * kTileNumbers, kTileRowBytes);
    }
  }
  static void multiply() {
    _tile_dpbf16ps(0, ZO_A, ZO_B);
    if constexpr (N == 2) {
      _tile_dpbf16ps(1, ZO_A, ZO_NEXT_B);
    }
    if constexpr (M == 2) {
      _tile_dpbf16ps(2, ZO_NEXT_A, ZO_B);
      if constexpr (N == 2) {
        _tile_dpbf16ps(3, ZO_NEXT_A, ZO_NEXT_B);
      }
    }
  }
};

// Adds the sums of a tile to C, as far as it has rows and columns.
void store_tile(const TiledBlock& block, const float* sums, size_t row, size_t column) {
  const size_t columns = block.count - column < kTile ? block.count - column : kTile;
  const size_t rows = block.rows - row < kTile ? block.rows - row : kTile;
  const __mmask16 lanes = lanes_below(columns);
  for (size_t r = 0; r < rows; ++r) {
    __m512 sum = _mm512_load_ps(sums + r * kTile);
    if (block.scales != nullptr) {
      sum = _mm512_mul_ps(sum, _mm512_maskz_loadu_ps(lanes, block.scales + column));
    }
    if (block.before != nullptr) {
      sum = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, block.before + (row + r) * block.before_stride + column), sum);
    }
    _mm512_mask_storeu_ps(block.c + (row + r) * block.c_stride + column, lanes, sum);
  }
}

// A is Q parts, B is P.
template <size_t M, size_t N, size_t Q, size_t P>
void multiply_tiles(const TiledBlock& block, size_t row) {
  const size_t a_step = Q * kTileNumbers, b_step = N * P * kTileNumbers;
  Steps<M, N> at{block.a + row / kTile * block.steps * a_step, block.steps * a_step, block.b, P * kTileNumbers};
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (size_t step = 0; step < block.steps; ++step, at.a += a_step, at.b += b_step) {
    // In an order in which little is loaded twice.
    if constexpr (P == 3) {
      at.load_b(2);
      at.load_a(0);
      at.multiply();
    }
    if constexpr (P >= 2) {
      at.load_b(1);
      at.load_a(1);
      at.multiply();
    }
    at.load_a(0);
    if constexpr (P >= 2) {
      at.multiply();
    }
    at.load_b(0);
    at.multiply();
    if constexpr (Q == kParts) {
      at.load_a(1);
      at.multiply();
      at.load_a(2);
      at.multiply();
    }
  }
  alignas(64) float sums[4][kTile * kTile];
  _tile_stored(0, sums[0], kTileRowBytes);
  if constexpr (N == 2) {
    _tile_stored(1, sums[1], kTileRowBytes);
  }
  if constexpr (M == 2) {
    _tile_stored(2, sums[2], kTileRowBytes);
    if constexpr (N == 2) {
      _tile_stored(3, sums[3], kTileRowBytes);
    }
  }
  for (size_t m = 0; m < M; ++m) {
    for (size_t n = 0; n < N; ++n) {
      store_tile(block, sums[2 * m + n], row + m * kTile, n * kTile);
    }
  }
}

template <size_t N, size_t Q, size_t P>
void multiply_rows(const TiledBlock& block) {
  take_tiles(all_tiles());
  size_t row = 0;
  for (; row + kTile < block.rows; row += 2 * kTile) {
    multiply_tiles<2, N, Q, P>(block, row);
  }
  if (row < block.rows) {
    multiply_tiles<1, N, Q, P>(block, row);
  }
  _tile_release();
}

template <size_t N>
void multiply_parts(const TiledBlock& block) {
  switch (block.parts) {
    case 1:
      return multiply_rows<N, kParts, 1>(block);
    case 2:
      return multiply_rows<N, kParts, 2>(block);
    default:
      return multiply_rows<N, kParts, 3>(block);
  }
}

void multiply(const TiledBlock& block) {
  if (block.count > kTile) {
    multiply_parts<2>(block);
  } else {
    multiply_parts<1>(block);
  }
}

void multiply_rounded(const TiledBlock& block) {
  if (block.count > kTile) {
    multiply_rows<2, 1, 1>(block);
  } else {
    multiply_rows<1, 1, 1>(block);
  }
}

constexpr TiledKernels with_rounded_tiles() {
  TiledKernels kernels = rounded_tiles<Avx512Bf16>();
  kernels.multiply = multiply_rounded;
  return kernels;
}

constexpr TiledKernels tiles = {kParts,     pack_rows,
                                pack_float, pack_float_transposed,
                                pack_int4,  pack_int4_transposed,
                                pack_int8,  pack_int8_transposed,
                                multiply};
constexpr TiledKernels rounded = with_rounded_tiles();

constexpr ProductKernels with_tiles() {
  ProductKernels kernels = bf16_kernels<Avx512>(&rounded);
  kernels.tiled = &tiles;
  return kernels;
}

}  // namespace

constexpr ProductKernels products_amx = with_tiles();

}  // namespace kernels
}  // namespace zoexport
