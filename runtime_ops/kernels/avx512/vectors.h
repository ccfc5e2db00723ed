// The vectors of AVX-512, as vector_products.h and vector_grid.h ask for them: products in tiles of 14 by 32, which
// leave four of the registers free.
// In an anonymous namespace: each file that is compiled for these instructions has its own.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace zoexport {
namespace kernels {
namespace {

struct Avx512 {
  static constexpr size_t kLanes = 16, kRows = 14, kVectors = 2, kNarrowRows = 16, kFewRows = 8, kFewVectors = 4;
  typedef float Float __attribute__((vector_size(64)));
  typedef uint32_t Word __attribute__((vector_size(64)));
  typedef int32_t Int __attribute__((vector_size(64)));

  static Float load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Float value) { _mm512_storeu_ps(to, value); }
  static Float broadcast(float value) { return _mm512_set1_ps(value); }
  static Float multiply_add(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float to_float(Word word) { return _mm512_cvtepi32_ps((__m512i)word); }
  static Float greatest(Float a, Float b) { return _mm512_max_ps(a, b); }

  static __m512i load_four(const char* const* rows, size_t offset) {
    const auto row = [&](size_t i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i] + offset)); };
    // By halves: inserting from memory is cheaper in 256 bits.
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(row(0)), row(4), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(row(8)), row(12), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }

  static void load_columns(const char* const (&rows)[kLanes], size_t offset, Word (&out)[4]) {
    // Rows i, i+4, i+8, i+12 in the quarters of a vector, so that transposing 4x4 within each quarter is all.
    const __m512i r0 = load_four(rows, offset);
    const __m512i r1 = load_four(rows + 1, offset);
    const __m512i r2 = load_four(rows + 2, offset);
    const __m512i r3 = load_four(rows + 3, offset);
    const __m512i low01 = _mm512_unpacklo_epi32(r0, r1);
    const __m512i high01 = _mm512_unpackhi_epi32(r0, r1);
    const __m512i low23 = _mm512_unpacklo_epi32(r2, r3);
    const __m512i high23 = _mm512_unpackhi_epi32(r2, r3);
    out[0] = (Word)_mm512_unpacklo_epi64(low01, low23);
    out[1] = (Word)_mm512_unpackhi_epi64(low01, low23);
    out[2] = (Word)_mm512_unpacklo_epi64(high01, high23);
    out[3] = (Word)_mm512_unpackhi_epi64(high01, high23);
  }

  static Float int4_values(Word word) {
    // A table of all 16 values: the instruction looks at the low 4 bits alone.
    const __m512 values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_permutexvar_ps((__m512i)word, values);
  }

  struct Int4Scale {
    Float scale;

    void set(Float value) { scale = value; }
    Float times(Word word, size_t i) const { return int4_values(word >> static_cast<uint32_t>(4 * i)) * scale; }
  };

  static Word spread_int4(const uint8_t* codes) {
    long long eight;
    __builtin_memcpy(&eight, codes, sizeof(eight));
    const __m512i halves = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    return (Word)_mm512_srlv_epi32(_mm512_permutexvar_epi32(halves, _mm512_set1_epi64(eight)), shifts);
  }

  static Word spread_int8(const int8_t* codes) {
    return (Word)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  }

  static Int clamp(Int value, int low, int high) {
    const __m512i raised = _mm512_max_epi32((__m512i)value, _mm512_set1_epi32(low));
    return (Int)_mm512_min_epi32(raised, _mm512_set1_epi32(high));
  }
  static Float least(Float a, Float b) { return _mm512_min_ps(a, b); }
  static Word to_int(Float value) { return (Word)_mm512_cvttps_epi32(value); }
  static bool none(Word word) { return _mm512_test_epi32_mask((__m512i)word, (__m512i)word) == 0; }

  static Word load_halves(const uint8_t* from) {
    return (Word)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static void store_halves(uint8_t* to, Word word) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16((__m512i)word));
  }
};

}  // namespace
}  // namespace kernels
}  // namespace zoexport
