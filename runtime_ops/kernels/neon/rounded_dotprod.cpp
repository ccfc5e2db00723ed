// Products of rounded rows with NEON's dot product. Compiled with -march=armv8.2-a+dotprod; see vector_rounded.h.
#include "kernels/neon/vectors.h"
#include "kernels/vector_rounded.h"

namespace zoexport {
namespace kernels {
namespace {

struct Dots {
  static constexpr size_t kRows = 12;
  int32x4_t sums = vdupq_n_s32(0);

  Dots() = default;
  explicit Dots(int32_t begin) : sums(vdupq_n_s32(begin)) {}
  void add(Neon::Word codes, const int8_t* four) {
    int32_t word;
    __builtin_memcpy(&word, four, sizeof(word));
    sums = vdotq_s32(sums, vreinterpretq_s8_u32(codes), vreinterpretq_s8_s32(vdupq_n_s32(word)));
  }
  Neon::Float total() const { return vcvtq_f32_s32(sums); }
};

}  // namespace

constexpr RoundedKernels rounded_dotprod = rounded_kernels<Neon, Dots>();

}  // namespace kernels
}  // namespace zoexport
