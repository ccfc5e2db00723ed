// Sums of products of integers with NEON's dot product, as vector_rounded.h asks for them.
// In an anonymous namespace: each file that is compiled for these instructions has its own.
#pragma once

#include "kernels/neon/vectors.h"

namespace zoexport {
namespace kernels {
namespace {

struct Dots {
  static constexpr size_t kRows = 12;
  static constexpr size_t kPanels = 1;
  typedef const int8_t* Four;
  int32x4_t sums = vdupq_n_s32(0);

  Dots() = default;
  explicit Dots(int32_t begin) : sums(vdupq_n_s32(begin)) {}
  static Four load(const int8_t* four) { return four; }
  void add(Neon::Word codes, Four four) {
    int32_t word;
    __builtin_memcpy(&word, four, sizeof(word));
    sums = vdotq_s32(sums, vreinterpretq_s8_u32(codes), vreinterpretq_s8_s32(vdupq_n_s32(word)));
  }
  Neon::Float total() const { return vcvtq_f32_s32(sums); }
};

// Sums for codes without an offset: a row has none either.
struct ByteDots : Dots {
  ByteDots() = default;
  explicit ByteDots(int32_t) {}
};

}  // namespace
}  // namespace kernels
}  // namespace zoexport
