// Sums of products of integers with AVX-512's VNNI, as vector_rounded.h asks for them.
// In an anonymous namespace: each file that is compiled for these instructions has its own.
#pragma once

#include "kernels/avx512/vectors.h"

namespace zoexport {
namespace kernels {
namespace {

struct Dots {
  static constexpr size_t kRows = 12;
  static constexpr size_t kPanels = 1;
  typedef const int8_t* Four;
  __m512i sums = _mm512_setzero_si512();

  Dots() = default;
  explicit Dots(int32_t begin) : sums(_mm512_set1_epi32(begin)) {}
  static Four load(const int8_t* four) { return four; }
  void add(Avx512::Word codes, Four four) {
    int32_t word;
    __builtin_memcpy(&word, four, sizeof(word));
    sums = _mm512_dpbusd_epi32(sums, (__m512i)codes, _mm512_set1_epi32(word));
  }
  Avx512::Float total() const { return _mm512_cvtepi32_ps(sums); }
};

// Sums for codes with an offset of 128 instead of 8: a row's offset is 16 times as large.
struct ByteDots : Dots {
  ByteDots() = default;
  explicit ByteDots(int32_t begin) : Dots(16 * begin) {}
};

}  // namespace
}  // namespace kernels
}  // namespace zoexport
