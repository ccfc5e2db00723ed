// Normals with NEON, which every 64-bit ARM has: four blocks a vector. See vector_normal.h.
#include <arm_neon.h>

#include "rng/variants.h"
#include "rng/vector_normal.h"

namespace zoexport {
namespace rng {
namespace {

struct Neon {
  static constexpr size_t kLanes = 4;
  using Float = float32x4_t;
  using Word = uint32x4_t;

  static Float as_float(Word bits) { return vreinterpretq_f32_u32(bits); }
  static Word as_bits(Float value) { return vreinterpretq_u32_f32(value); }
  static Float to_float(Word word) { return vcvtq_f32_s32(vreinterpretq_s32_u32(word)); }
  static Float sqrt(Float value) { return vsqrtq_f32(value); }
  static Word first_lanes() { return Word{0, 1, 2, 3}; }

  static void multiply(Word a, uint32_t m, Word& low, Word& high) {
    const Word factor = vdupq_n_u32(m);
    const Word first = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(a), vget_low_u32(factor)));
    const Word last = vreinterpretq_u32_u64(vmull_high_u32(a, factor));
    low = vuzp1q_u32(first, last);
    high = vuzp2q_u32(first, last);
  }

  static void store(float* out, Float e0, Float e1, Float e2, Float e3) {
    const float32x4x4_t elements = {{e0, e1, e2, e3}};
    vst4q_f32(out, elements);
  }
};

} // namespace

void normal_blocks_neon(const Stream& stream, uint32_t first_block, float* out) {
  vector_normal_blocks<Neon>(stream, first_block, out);
}

} // namespace rng
} // namespace zoexport
