// The vectors of AVX-512 for noise: sixteen blocks each. See vector_philox.h.
// In an anonymous namespace: each file that is compiled for these instructions has its own.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace zoexport {
namespace rng {
namespace {

struct Avx512 {
  static constexpr size_t kLanes = 16;
  typedef float Float __attribute__((vector_size(64)));
  typedef uint32_t Word __attribute__((vector_size(64)));

  static Float as_float(Word bits) { return (Float)bits; }
  static Word as_bits(Float value) { return (Word)value; }
  static Float to_float(Word word) { return _mm512_cvtepi32_ps((__m512i)word); }
  static Float sqrt(Float value) { return _mm512_sqrt_ps(value); }
  static Word first_lanes() { return Word{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

  static void multiply(Word a, uint32_t m, Word& low, Word& high) {
    // The instruction multiplies the even lanes, so the odd ones are moved there and their products back.
    const __m512i factor = _mm512_set1_epi32(static_cast<int32_t>(m));
    const __m512i even = _mm512_mul_epu32((__m512i)a, factor);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), factor);
    low = (Word)_mm512_mask_shuffle_epi32(even, 0xAAAA, odd, _MM_PERM_CCAA);
    high = (Word)_mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_DDBB);
  }

  static void store(float* out, Float e0, Float e1, Float e2, Float e3) {
    // Transposes 4x4 within each quarter, then the quarters: `a` has the elements of blocks 0, 4, 8 and 12, `b` of 1,
    // 5, 9 and 13, and so on.
    const __m512 low01 = _mm512_unpacklo_ps(e0, e1);
    const __m512 high01 = _mm512_unpackhi_ps(e0, e1);
    const __m512 low23 = _mm512_unpacklo_ps(e2, e3);
    const __m512 high23 = _mm512_unpackhi_ps(e2, e3);
    const __m512 a = _mm512_shuffle_ps(low01, low23, 0x44);
    const __m512 b = _mm512_shuffle_ps(low01, low23, 0xEE);
    const __m512 c = _mm512_shuffle_ps(high01, high23, 0x44);
    const __m512 d = _mm512_shuffle_ps(high01, high23, 0xEE);
    const __m512 low_ab = _mm512_shuffle_f32x4(a, b, 0x44);
    const __m512 low_cd = _mm512_shuffle_f32x4(c, d, 0x44);
    const __m512 high_ab = _mm512_shuffle_f32x4(a, b, 0xEE);
    const __m512 high_cd = _mm512_shuffle_f32x4(c, d, 0xEE);
    _mm512_storeu_ps(out, _mm512_shuffle_f32x4(low_ab, low_cd, 0x88));
    _mm512_storeu_ps(out + 16, _mm512_shuffle_f32x4(low_ab, low_cd, 0xDD));
    _mm512_storeu_ps(out + 32, _mm512_shuffle_f32x4(high_ab, high_cd, 0x88));
    _mm512_storeu_ps(out + 48, _mm512_shuffle_f32x4(high_ab, high_cd, 0xDD));
  }

  static Word load(const void* from) { return (Word)_mm512_loadu_si512(from); }
  static void store(void* to, Word word) { _mm512_storeu_si512(to, (__m512i)word); }

  static constexpr uint32_t kFewBits = 5;

  struct Few {
    Word thresholds[2], pairs[2];

    Few(const int32_t* entries, uint32_t log2_size) : thresholds{}, pairs{} {
      for (size_t i = 0; i < size_t{1} << log2_size; ++i) {
        thresholds[i / kLanes][i % kLanes] = static_cast<uint32_t>(entries[2 * i]);
        pairs[i / kLanes][i % kLanes] = static_cast<uint32_t>(entries[2 * i + 1]);
      }
    }
    static Word chosen(const Word (&of)[2], Word index) {
      return (Word)_mm512_permutex2var_epi32((__m512i)of[0], (__m512i)index, (__m512i)of[1]);
    }
    void find(Word index, Word& threshold, Word& pair) const {
      threshold = chosen(thresholds, index);
      pair = chosen(pairs, index);
    }
  };

  struct Any {
    const int32_t* entries;

    Any(const int32_t* table, uint32_t) : entries(table) {}
    void find(Word index, Word& threshold, Word& pair) const {
      // An entry is 64 bits: each is read at once.
      const __m512i low = _mm512_i32gather_epi64(_mm512_castsi512_si256((__m512i)index), entries, 8);
      const __m512i high = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64((__m512i)index, 1), entries, 8);
      const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
      threshold = (Word)_mm512_permutex2var_epi32(low, even, high);
      pair = (Word)_mm512_permutex2var_epi32(low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), high);
    }
  };
};

}  // namespace
}  // namespace rng
}  // namespace zoexport
