// Products of rounded rows with AVX-512 and VNNI. Compiled with -mavx512f -mavx512vnni; see vector_rounded.h.
#include "kernels/avx512/vectors.h"
#include "kernels/vector_rounded.h"

namespace zoexport {
namespace kernels {
namespace {

struct Dots {
  static constexpr size_t kRows = 12;
  __m512i sums = _mm512_setzero_si512();

  Dots() = default;
  explicit Dots(int32_t begin) : sums(_mm512_set1_epi32(begin)) {}
  void add(Avx512::Word codes, const int8_t* four) {
    int32_t word;
    __builtin_memcpy(&word, four, sizeof(word));
    sums = _mm512_dpbusd_epi32(sums, (__m512i)codes, _mm512_set1_epi32(word));
  }
  Avx512::Float total() const { return _mm512_cvtepi32_ps(sums); }
};

}  // namespace

constexpr RoundedKernels rounded_vnni = rounded_kernels<Avx512, Dots>();

}  // namespace kernels
}  // namespace zoexport
