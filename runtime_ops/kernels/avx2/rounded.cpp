// Products of rounded rows with AVX2 and FMA. Compiled with -mavx2 -mfma; see vector_rounded.h.
#include "kernels/avx2/vectors.h"
#include "kernels/vector_rounded.h"

namespace zoexport {
namespace kernels {
namespace {

// In 16 bits while a group lasts: 8 times two products of at most 15 * 127.
struct Dots {
  static constexpr size_t kRows = 5;
  static constexpr size_t kPanels = 2;
  typedef __m256i Four;
  __m256i pairs = _mm256_setzero_si256();
  int32_t offset = 0;

  Dots() = default;
  explicit Dots(int32_t begin) : offset(begin) {}
  static Four load(const int8_t* four) {
    int32_t word;
    __builtin_memcpy(&word, four, sizeof(word));
    return _mm256_set1_epi32(word);
  }
  void add(Avx2::Word codes, Four four) {
    pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16((__m256i)codes, four));
    asm("" : "+x"(pairs));  // or a compiler keeps all products of a group, in memory
  }
  Avx2::Float total() const {
    const __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(sums, _mm256_set1_epi32(offset)));
  }
};

// Two products of at most 127 * 127 are added in 16 bits: a sign goes from x to the code.
struct ByteDots {
  static constexpr size_t kRows = 5;
  static constexpr size_t kPanels = 2;
  typedef __m256i Four;
  __m256i sums = _mm256_setzero_si256();

  ByteDots() = default;
  explicit ByteDots(int32_t) {}
  static Four load(const int8_t* four) { return Dots::load(four); }
  void add(Avx2::Word codes, Four four) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(four), _mm256_sign_epi8((__m256i)codes, four));
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  Avx2::Float total() const { return _mm256_cvtepi32_ps(sums); }
};

}  // namespace

constexpr RoundedKernels rounded_avx2 = rounded_kernels<Avx2, Dots, ByteDots, detail::Unchanged>();

}  // namespace kernels
}  // namespace zoexport
