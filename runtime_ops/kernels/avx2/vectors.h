// The vectors of AVX2, as vector_products.h, vector_sparse.h and vector_grid.h ask for them: products in tiles of 6 by
// 16.
// In an anonymous namespace: each file that is compiled for these instructions has its own.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace zoexport {
namespace kernels {
namespace {

struct Avx2 {
  static constexpr size_t kLanes = 8, kRows = 6, kVectors = 2, kNarrowRows = 8, kFewRows = 4, kFewVectors = 4;
  typedef float Float __attribute__((vector_size(32)));
  typedef uint32_t Word __attribute__((vector_size(32)));
  typedef int32_t Int __attribute__((vector_size(32)));

  static Float load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Float value) { _mm256_storeu_ps(to, value); }
  static Float broadcast(float value) { return _mm256_set1_ps(value); }
  static Float multiply_add(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float to_float(Word word) { return _mm256_cvtepi32_ps((__m256i)word); }
  static Float greatest(Float a, Float b) { return _mm256_max_ps(a, b); }

  static __m256i load_two(const char* const* rows, size_t offset) {
    const auto half = [&](size_t row) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + offset)); };
    return _mm256_inserti128_si256(_mm256_castsi128_si256(half(0)), half(4), 1);
  }

  static void load_columns(const char* const (&rows)[kLanes], size_t offset, Word (&out)[4]) {
    // Rows i and i+4 in the halves of a vector, so that transposing 4x4 within each half is all.
    transpose(load_two(rows, offset), load_two(rows + 1, offset), load_two(rows + 2, offset),
              load_two(rows + 3, offset), out);
  }

  static void store_columns(const Word (&in)[4], char* const (&rows)[kLanes], size_t offset) {
    Word row[4];
    transpose((__m256i)in[0], (__m256i)in[1], (__m256i)in[2], (__m256i)in[3], row);
    for (size_t i = 0; i < 4; ++i) {
      const __m256i both = (__m256i)row[i];
      _mm_storeu_si128(reinterpret_cast<__m128i*>(rows[i] + offset), _mm256_castsi256_si128(both));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(rows[i + 4] + offset), _mm256_extracti128_si256(both, 1));
    }
  }

  // 4x4 within each half.
  static void transpose(__m256i r0, __m256i r1, __m256i r2, __m256i r3, Word (&out)[4]) {
    const __m256i low01 = _mm256_unpacklo_epi32(r0, r1);
    const __m256i high01 = _mm256_unpackhi_epi32(r0, r1);
    const __m256i low23 = _mm256_unpacklo_epi32(r2, r3);
    const __m256i high23 = _mm256_unpackhi_epi32(r2, r3);
    out[0] = (Word)_mm256_unpacklo_epi64(low01, low23);
    out[1] = (Word)_mm256_unpackhi_epi64(low01, low23);
    out[2] = (Word)_mm256_unpacklo_epi64(high01, high23);
    out[3] = (Word)_mm256_unpackhi_epi64(high01, high23);
  }

  static Float int4_values(Word word) { return to_float((word & 15u) - 8u); }

  // Codes become the lowest bits of floats of 2^15, 2^11 or 2^7, which they move by one each: arithmetic on floats and
  // bits is cheaper than shifts and conversions, and exact.
  struct Int4Scale {
    Float scale;

    void set(Float value) { scale = value; }
    Float times(Word word, size_t i) const {
      const size_t place = i < 2 ? i + 2 : i < 5 ? i : i - 3;
      const Word moved = i < 2 ? word << 8u : i < 5 ? word : word >> 12u;
      const uint32_t exponent = static_cast<uint32_t>(23 - 4 * place);
      const Word bits = (moved & (15u << (4 * place))) | ((127 + exponent) << 23);
      return ((Float)bits - broadcast(static_cast<float>((1u << exponent) + 8))) * scale;
    }
  };

  static Word spread_int4(const uint8_t* codes) {
    int four;
    __builtin_memcpy(&four, codes, sizeof(four));
    return (Word)_mm256_srlv_epi32(_mm256_set1_epi32(four), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
  }

  static Word spread_int8(const int8_t* codes) {
    return (Word)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  }

  static Int clamp(Int value, int low, int high) {
    const __m256i raised = _mm256_max_epi32((__m256i)value, _mm256_set1_epi32(low));
    return (Int)_mm256_min_epi32(raised, _mm256_set1_epi32(high));
  }
  static Float least(Float a, Float b) { return _mm256_min_ps(a, b); }
  static Word to_int(Float value) { return (Word)_mm256_cvttps_epi32(value); }
  static bool none(Word word) { return _mm256_testz_si256((__m256i)word, (__m256i)word) != 0; }

  static Word load_halves(const uint8_t* from) {
    return (Word)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static void store_halves(uint8_t* to, Word word) {
    const __m256i packed = _mm256_packus_epi32((__m256i)word, (__m256i)word);  // within each half
    const __m256i first = _mm256_permute4x64_epi64(packed, 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(first));
  }
};

}  // namespace
}  // namespace kernels
}  // namespace zoexport
