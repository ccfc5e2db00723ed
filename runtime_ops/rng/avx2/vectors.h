// The vectors of AVX2 for noise: eight blocks each. See vector_philox.h.
// In an anonymous namespace: each file that is compiled for these instructions has its own.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace zoexport {
namespace rng {
namespace {

struct Avx2 {
  static constexpr size_t kLanes = 8;
  typedef float Float __attribute__((vector_size(32)));
  typedef uint32_t Word __attribute__((vector_size(32)));

  static Float as_float(Word bits) { return (Float)bits; }
  static Word as_bits(Float value) { return (Word)value; }
  static Float to_float(Word word) { return _mm256_cvtepi32_ps((__m256i)word); }
  static Float sqrt(Float value) { return _mm256_sqrt_ps(value); }
  static Word first_lanes() { return Word{0, 1, 2, 3, 4, 5, 6, 7}; }

  static void multiply(Word a, uint32_t m, Word& low, Word& high) {
    // The instruction multiplies the even lanes, so the odd ones are moved there and their products back.
    const __m256i factor = _mm256_set1_epi32(static_cast<int32_t>(m));
    const __m256i even = _mm256_mul_epu32((__m256i)a, factor);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), factor);
    low = (Word)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
    high = (Word)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  }

  static void store(float* out, Float e0, Float e1, Float e2, Float e3) {
    // Transposes 4x4 within each 128-bit half: the halves of `a` are the elements of blocks 0 and 4, and so on.
    const __m256 low01 = _mm256_unpacklo_ps(e0, e1);
    const __m256 high01 = _mm256_unpackhi_ps(e0, e1);
    const __m256 low23 = _mm256_unpacklo_ps(e2, e3);
    const __m256 high23 = _mm256_unpackhi_ps(e2, e3);
    const __m256 a = _mm256_shuffle_ps(low01, low23, 0x44);
    const __m256 b = _mm256_shuffle_ps(low01, low23, 0xEE);
    const __m256 c = _mm256_shuffle_ps(high01, high23, 0x44);
    const __m256 d = _mm256_shuffle_ps(high01, high23, 0xEE);
    _mm256_storeu_ps(out, _mm256_permute2f128_ps(a, b, 0x20));
    _mm256_storeu_ps(out + 8, _mm256_permute2f128_ps(c, d, 0x20));
    _mm256_storeu_ps(out + 16, _mm256_permute2f128_ps(a, b, 0x31));
    _mm256_storeu_ps(out + 24, _mm256_permute2f128_ps(c, d, 0x31));
  }

  static Word load(const void* from) { return (Word)_mm256_loadu_si256(static_cast<const __m256i*>(from)); }
  static void store(void* to, Word word) { _mm256_storeu_si256(static_cast<__m256i*>(to), (__m256i)word); }

  static constexpr uint32_t kFewBits = 3;

  struct Few {
    Word thresholds, pairs;

    Few(const int32_t* entries, uint32_t) : thresholds{}, pairs{} {
      for (size_t i = 0; i < kLanes; ++i) {
        thresholds[i] = static_cast<uint32_t>(entries[2 * i]);
        pairs[i] = static_cast<uint32_t>(entries[2 * i + 1]);
      }
    }
    void find(Word index, Word& threshold, Word& pair) const {
      threshold = (Word)_mm256_permutevar8x32_epi32((__m256i)thresholds, (__m256i)index);
      pair = (Word)_mm256_permutevar8x32_epi32((__m256i)pairs, (__m256i)index);
    }
  };

  struct Any {
    const int32_t* entries;

    Any(const int32_t* table, uint32_t) : entries(table) {}
    // An entry is 64 bits: each is read at once.
    static __m256i gather(const int32_t* from, __m128i index) {
      return _mm256_i32gather_epi64(reinterpret_cast<const long long*>(from), index, 8);
    }
    void find(Word index, Word& threshold, Word& pair) const {
      const Float low = (Float)gather(entries, _mm256_castsi256_si128((__m256i)index));
      const Float high = (Float)gather(entries, _mm256_extracti128_si256((__m256i)index, 1));
      threshold = (Word)_mm256_permute4x64_epi64((__m256i)_mm256_shuffle_ps(low, high, 0x88), 0xD8);
      pair = (Word)_mm256_permute4x64_epi64((__m256i)_mm256_shuffle_ps(low, high, 0xDD), 0xD8);
    }
  };
};

}  // namespace
}  // namespace rng
}  // namespace zoexport
