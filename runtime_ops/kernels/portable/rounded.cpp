// Products of rounded rows on every processor; see vector_rounded.h.
#include "kernels/portable/vectors.h"
#include "kernels/vector_rounded.h"

namespace zoexport {
namespace kernels {
namespace {

struct Dots {
  static constexpr size_t kRows = 2;
  static constexpr size_t kPanels = 1;
  typedef const int8_t* Four;
  Portable::Int sums = {};

  Dots() = default;
  explicit Dots(int32_t begin) : sums{begin, begin, begin, begin} {}
  static Four load(const int8_t* four) { return four; }
  void add(Portable::Word codes, Four four) {
    for (uint32_t i = 0; i < 4; ++i) {
      sums += (Portable::Int)((codes >> (8 * i)) & 255u) * static_cast<int32_t>(four[i]);
    }
  }
  Portable::Float total() const { return Portable::to_float((Portable::Word)sums); }
};

// Sums for codes with an offset of 128 instead of 8: a row's offset is 16 times as large.
struct ByteDots : Dots {
  ByteDots() = default;
  explicit ByteDots(int32_t begin) : Dots(16 * begin) {}
};

}  // namespace

constexpr RoundedKernels rounded_portable = rounded_kernels<Portable, Dots, ByteDots, detail::Above128>();

}  // namespace kernels
}  // namespace zoexport
