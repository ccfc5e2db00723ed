// Products of many rounded rows with NEON's matrix product of integers, of few with its dot product. Compiled with
// -march=armv8.2-a+dotprod+i8mm.
//
// One instruction adds the products of 8 bytes of two rows with 8 bytes of two columns: four sums. The sums of a group
// are scaled and added as vector_rounded.h has it, so the bits are the same.
#include "kernels/neon/dots.h"
#include "kernels/vector_rounded.h"

namespace zoexport {
namespace kernels {
namespace {

using detail::kWordsOfGroup;

constexpr size_t kLanes = Neon::kLanes;
constexpr size_t kRows = 12;  // whose sums, those of a group, and what is multiplied are in registers
constexpr size_t kPanelOfGroup = kWordsOfGroup * kLanes;

// Convert a panel's codes to q, which they exceed by `above`: for each eight inputs, two columns next to each other (32
// bytes of four columns), then the scales.
void pair_columns(size_t groups, uint8x16_t above, float* panel) {
  for (size_t g = 0; g < groups; ++g, panel += kPanelOfGroup) {
    for (size_t i = 0; i < 2 * detail::kFloats; i += 2) {
      float* const at = panel + i * kLanes;
      const auto codes = [&](size_t word) {
        return vreinterpretq_u32_u8(vsubq_u8(vreinterpretq_u8_f32(vld1q_f32(at + word * kLanes)), above));
      };
      const uint32x4_t even = codes(0), odd = codes(1);
      vst1q_f32(at, vreinterpretq_f32_u32(vzip1q_u32(even, odd)));
      vst1q_f32(at + kLanes, vreinterpretq_f32_u32(vzip2q_u32(even, odd)));
    }
  }
}

void fill(const Int4Matrix& weight, size_t column, float* panel) {
  detail::fill_rounded<Neon>(weight, column, panel);
  pair_columns(weight.K / kRoundedGroup, vdupq_n_u8(8), panel);
}

void fill_bytes(const Int8Matrix& weight, size_t column, float* panel) {
  detail::fill_bytes<Neon, detail::Unchanged>(weight, column, panel);
  pair_columns(weight.K / kRoundedGroup, vdupq_n_u8(0), panel);
}

// 16 bytes of two rows from `q` on, as pairs of their eights.
struct TwoRows {
  int8x16_t eights[2];

  TwoRows(const int8_t* one, const int8_t* other) {
    const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(one)), b = vreinterpretq_s64_s8(vld1q_s8(other));
    eights[0] = vreinterpretq_s8_s64(vzip1q_s64(a, b));
    eights[1] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
  }
};

// y of R rows; of an odd number the last pair has the last row twice.
template <size_t R>
void multiply_rows(const RoundedLinear& product, size_t first, size_t column, const float* panel) {
  constexpr size_t kPairs = (R + 1) / 2;
  const RoundedRows& x = product.x;
  const Neon::Float bias = detail::load_bias<Neon>(product, column);
  Neon::Float sum[R];
#pragma GCC unroll 16
  for (size_t r = 0; r < R; ++r) {
    sum[r] = bias;
  }
  const int8_t* q = x.codes + first * x.K;
  for (size_t g = 0; g < x.K / kRoundedGroup; ++g, panel += kPanelOfGroup, q += kRoundedGroup) {
    int32x4_t left[kPairs], right[kPairs];  // of the first two columns and the others: rows one after the other
#pragma GCC unroll 8
    for (size_t p = 0; p < kPairs; ++p) {
      left[p] = right[p] = vdupq_n_s32(0);
    }
#pragma GCC unroll 2
    for (size_t half = 0; half < kRoundedGroup; half += 16) {
      const int8_t* const codes = reinterpret_cast<const int8_t*>(panel) + half * kLanes;
      const int8x16_t w[4] = {vld1q_s8(codes), vld1q_s8(codes + 16), vld1q_s8(codes + 32), vld1q_s8(codes + 48)};
#pragma GCC unroll 8
      for (size_t p = 0; p < kPairs; ++p) {
        const int8_t* const one = q + 2 * p * x.K + half;
        const TwoRows rows(one, 2 * p + 1 < R ? one + x.K : one);
        left[p] = vmmlaq_s32(vmmlaq_s32(left[p], rows.eights[0], w[0]), rows.eights[1], w[2]);
        right[p] = vmmlaq_s32(vmmlaq_s32(right[p], rows.eights[0], w[1]), rows.eights[1], w[3]);
      }
    }
    const Neon::Float scale = Neon::load(panel + 2 * detail::kFloats * kLanes);
    const float* scales = x.scales + g * x.rows + first;
#pragma GCC unroll 16
    for (size_t r = 0; r < R; ++r) {
      const int64x2_t a = vreinterpretq_s64_s32(left[r / 2]), b = vreinterpretq_s64_s32(right[r / 2]);
      const int64x2_t row = r % 2 == 0 ? vzip1q_s64(a, b) : vzip2q_s64(a, b);
      const Neon::Float total = vcvtq_f32_s32(vreinterpretq_s32_s64(row));
      sum[r] = Neon::multiply_add(total, scale * Neon::broadcast(scales[r]), sum[r]);
    }
  }
  detail::store_sums<Neon, R>(product, first, column, sum);
}

template <size_t R = 1>
void multiply(const RoundedLinear& product, size_t first, size_t count, size_t column, const float* panel,
              size_t count_panels) {
  if constexpr (R < kRows) {
    if (count > R) {
      return multiply<R + 1>(product, first, count, column, panel, count_panels);
    }
  }
  multiply_rows<R>(product, first, column, panel);
}

}  // namespace

constexpr RoundedKernels rounded_i8mm = {kLanes,     Neon::kFewRows, kRows, detail::multiply_rounded_rows<Neon, Dots>,
                                         1,          kPanelOfGroup,  fill,  multiply,
                                         fill_bytes, multiply};

}  // namespace kernels
}  // namespace zoexport
