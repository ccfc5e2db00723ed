// Products of many rounded rows with AMX, of few with VNNI. Compiled with -mamx-tile -mamx-int8 and AVX-512's flags.
//
// A tile of x (16 rows, the 32 bytes of a group) times one of a panel (its 8 words of 16 columns) is a group's sums,
// 16 by 16, which are scaled and added in AVX-512's registers: the operations of vector_rounded.h, so the same bits.
#include "kernels/amx/tiles.h"
#include "kernels/avx512/dots.h"
#include "kernels/vector_rounded.h"

namespace zoexport {
namespace kernels {
namespace {

using detail::kWordsOfGroup;

constexpr size_t kLanes = Avx512::kLanes;
constexpr size_t kRowsOfCall = 512;
constexpr size_t kGroupsTogether = 9;  // with their panel and rows, within the first level of cache
constexpr size_t kPanelOfGroup = kWordsOfGroup * kLanes;

// Tiles: sums and x of 16 rows, sums and x of the rows that are left, and the panel.
#define ZO_SUMS 0
#define ZO_X 1
#define ZO_LAST_SUMS 2
#define ZO_LAST_X 3
#define ZO_CODES 4

struct Words {
  // Values are stored as q, so that sums need no offset.
  static Avx512::Word stored(Avx512::Word codes) {
    return (Avx512::Word)_mm512_sub_epi8((__m512i)codes, _mm512_set1_epi8(8));
  }
};

TileShapes shapes_of(size_t last) {
  TileShapes shapes;
  shapes.set(ZO_SUMS, kTileRows, kTileRowBytes);
  shapes.set(ZO_X, kTileRows, kRoundedGroup);
  shapes.set(ZO_LAST_SUMS, last, kTileRowBytes);
  shapes.set(ZO_LAST_X, last, kRoundedGroup);
  shapes.set(ZO_CODES, kRoundedGroup / sizeof(int32_t), kTileRowBytes);
  return shapes;
}

// The sums of R rows of x in so many groups, by a panel.
template <size_t R>
void multiply_groups(const int8_t* q, size_t K, const float* panel, size_t groups, int32_t (*dots)[R][kLanes]) {
  for (size_t g = 0; g < groups; ++g, q += kRoundedGroup, panel += kPanelOfGroup) {
    _tile_loadd(ZO_CODES, panel, kTileRowBytes);
    if constexpr (R == kTileRows) {
      _tile_loadd(ZO_X, q, K);
      _tile_zero(ZO_SUMS);
      _tile_dpbssd(ZO_SUMS, ZO_X, ZO_CODES);
      _tile_stored(ZO_SUMS, dots[g], kTileRowBytes);
    } else {
      _tile_loadd(ZO_LAST_X, q, K);
      _tile_zero(ZO_LAST_SUMS);
      _tile_dpbssd(ZO_LAST_SUMS, ZO_LAST_X, ZO_CODES);
      _tile_stored(ZO_LAST_SUMS, dots[g], kTileRowBytes);
    }
  }
}

// Adds them, scaled. GCC takes a tile's store for one to all of memory: apart from those, sums stay in registers.
template <size_t R>
void add_groups(const float* x_scales, size_t stride, const float* panel, size_t groups,
                const int32_t (*dots)[R][kLanes], Avx512::Float (&sums)[R]) {
  Avx512::Float sum[R];
#pragma GCC unroll 16
  for (size_t r = 0; r < R; ++r) {
    sum[r] = sums[r];
  }
  for (size_t g = 0; g < groups; ++g, panel += kPanelOfGroup) {
    const Avx512::Float scale = Avx512::load(panel + (kWordsOfGroup - 1) * kLanes);
#pragma GCC unroll 16
    for (size_t r = 0; r < R; ++r) {
      const Avx512::Float total = _mm512_cvtepi32_ps(_mm512_load_si512(dots[g][r]));
      sum[r] = Avx512::multiply_add(total, scale * Avx512::broadcast(x_scales[g * stride + r]), sum[r]);
    }
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < R; ++r) {
    sums[r] = sum[r];
  }
}

// y of R rows from `first` on.
template <size_t R>
void multiply_tile(const RoundedLinear& product, size_t first, size_t column, const float* panel) {
  const RoundedRows& x = product.x;
  const size_t groups = x.K / kRoundedGroup;
  const Avx512::Float bias = detail::load_bias<Avx512>(product, column);
  const int8_t* q = x.codes + first * x.K;
  const float* x_scales = x.scales + first;
  Avx512::Float sums[R];
#pragma GCC unroll 16
  for (size_t r = 0; r < R; ++r) {
    sums[r] = bias;
  }
  // All of a group's sums are stored before the first is read: until a tile's store is in the cache, what reads it waits.
  alignas(64) int32_t dots[kGroupsTogether][R][kLanes];
  const size_t parts = (groups + kGroupsTogether - 1) / kGroupsTogether;
  for (size_t part = 0; part < parts; ++part) {
    const size_t g = part * groups / parts, count = (part + 1) * groups / parts - g;
    multiply_groups<R>(q + g * kRoundedGroup, x.K, panel + g * kPanelOfGroup, count, dots);
    add_groups<R>(x_scales + g * x.rows, x.rows, panel + g * kPanelOfGroup, count, dots, sums);
  }
  detail::store_sums<Avx512, R>(product, first, column, sums);
}

template <size_t R = 1>
void multiply_last(const RoundedLinear& product, size_t first, size_t count, size_t column, const float* panel) {
  if constexpr (R + 1 < kTileRows) {
    if (count > R) {
      return multiply_last<R + 1>(product, first, count, column, panel);
    }
  }
  multiply_tile<R>(product, first, column, panel);
}

void multiply(const RoundedLinear& product, size_t first, size_t count, size_t column, const float* panel, size_t) {
  const size_t last = count % kTileRows, end = first + count;
  take_tiles(shapes_of(last));
  for (; first + kTileRows <= end; first += kTileRows) {
    multiply_tile<kTileRows>(product, first, column, panel);
  }
  if (last > 0) {
    multiply_last(product, first, last, column, panel);
  }
  _tile_release();
}

}  // namespace

constexpr RoundedKernels rounded_amx = {kLanes,
                                        Avx512::kFewRows,
                                        kRowsOfCall,
                                        detail::multiply_rounded_rows<Avx512, Dots>,
                                        1,
                                        kPanelOfGroup,
                                        detail::fill_rounded<Avx512, Words>,
                                        multiply,
                                        detail::fill_bytes<Avx512, detail::Unchanged>,
                                        multiply};

}  // namespace kernels
}  // namespace zoexport
