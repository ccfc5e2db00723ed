// Products with NEON, those of numbers rounded to bfloat16 by their pairs. Compiled with -march=armv8.2-a+bf16.
#include "kernels/neon/vectors.h"
#include "kernels/vector_bf16.h"

namespace zoexport {
namespace kernels {
namespace {

struct NeonBf16 : Neon {
  static Word rounded_pairs(Float a, Float b) {
    const uint16x4_t low = vreinterpret_u16_bf16(vcvt_bf16_f32(a)), high = vreinterpret_u16_bf16(vcvt_bf16_f32(b));
    return vorrq_u32(vmovl_u16(low), vshlq_n_u32(vmovl_u16(high), 16));
  }
  static void store_rounded(uint16_t* to, Float a, Float b) {
    vst1q_u16(to, vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(a), b)));
  }
  static Float dot(Float sum, Word a, Word b) {
    return vbfdotq_f32(sum, vreinterpretq_bf16_u32(a), vreinterpretq_bf16_u32(b));
  }
};

constexpr TiledKernels tiles = rounded_tiles<NeonBf16>();

}  // namespace

constexpr ProductKernels products_neon_bf16 = bf16_kernels<NeonBf16>(&tiles);

}  // namespace kernels
}  // namespace zoexport
