// Normals with AVX2: eight blocks a vector. Compiled with -mavx2; see vector_normal.h.
#include <immintrin.h>

#include "rng/variants.h"
#include "rng/vector_normal.h"

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
};

} // namespace

void normal_blocks_avx2(const Stream& stream, uint32_t first_block, float* out) {
  vector_normal_blocks<Avx2>(stream, first_block, out);
}

} // namespace rng
} // namespace zoexport
