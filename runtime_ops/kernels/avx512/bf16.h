// AVX-512's products of pairs of bfloat16, as vector_bf16.h asks for them. For files that are compiled with
// -mavx512bw -mavx512bf16.
#pragma once

#include "kernels/avx512/vectors.h"

namespace zoexport {
namespace kernels {
namespace {

struct Avx512Bf16 : Avx512 {
  static Word rounded_pairs(Float a, Float b) {
    // Halves of both, one after the other, become pairs.
    const __m512i pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (Word)_mm512_permutexvar_epi16(pairs, (__m512i)_mm512_cvtne2ps_pbh(b, a));
  }
  static void store_rounded(uint16_t* to, Float a, Float b) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(b, a));
  }
  static Float dot(Float sum, Word a, Word b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
};

}  // namespace
}  // namespace kernels
}  // namespace zoexport
