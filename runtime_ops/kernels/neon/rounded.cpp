// Products of rounded rows with what NEON always has; see vector_rounded.h.
#include "kernels/neon/vectors.h"
#include "kernels/vector_rounded.h"

namespace zoexport {
namespace kernels {
namespace {

// In 16 bits while a group lasts: 8 products of at most 15 * 127. Of each lane four neighbours.
struct Dots {
  static constexpr size_t kRows = 6;
  static constexpr size_t kPanels = 1;
  typedef const int8_t* Four;
  int16x8_t low = vdupq_n_s16(0);
  int16x8_t high = vdupq_n_s16(0);
  int32_t offset = 0;

  Dots() = default;
  explicit Dots(int32_t begin) : offset(begin) {}
  static Four load(const int8_t* four) { return four; }
  void add(Neon::Word codes, Four four) {
    int32_t word;
    __builtin_memcpy(&word, four, sizeof(word));
    const int8x16_t left = vreinterpretq_s8_u32(codes), right = vreinterpretq_s8_s32(vdupq_n_s32(word));
    low = vmlal_s8(low, vget_low_s8(left), vget_low_s8(right));
    high = vmlal_high_s8(high, left, right);
  }
  Neon::Float total() const {
    return vcvtq_f32_s32(vaddq_s32(vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)), vdupq_n_s32(offset)));
  }
};

// Two products of at most 127 * 127 are added in 16 bits.
struct ByteDots {
  static constexpr size_t kRows = 6;
  static constexpr size_t kPanels = 1;
  typedef const int8_t* Four;
  int32x4_t low = vdupq_n_s32(0);
  int32x4_t high = vdupq_n_s32(0);

  ByteDots() = default;
  explicit ByteDots(int32_t) {}
  static Four load(const int8_t* four) { return four; }
  void add(Neon::Word codes, Four four) {
    int32_t word;
    __builtin_memcpy(&word, four, sizeof(word));
    const int8x16_t left = vreinterpretq_s8_u32(codes), right = vreinterpretq_s8_s32(vdupq_n_s32(word));
    low = vpadalq_s16(low, vmull_s8(vget_low_s8(left), vget_low_s8(right)));
    high = vpadalq_s16(high, vmull_high_s8(left, right));
  }
  Neon::Float total() const { return vcvtq_f32_s32(vpaddq_s32(low, high)); }
};

}  // namespace

constexpr RoundedKernels rounded_neon = rounded_kernels<Neon, Dots, ByteDots, detail::Unchanged>();

}  // namespace kernels
}  // namespace zoexport
