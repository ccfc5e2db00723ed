// Noise with AVX2: eight blocks a vector. Compiled with -mavx2; see vector_noise.h.
#include "rng/avx2/vectors.h"
#include "rng/variants.h"
#include "rng/vector_noise.h"

namespace zoexport {
namespace rng {

void normal_blocks_avx2(const Stream& stream, uint32_t first_block, float* out) {
  vector_normal_blocks<Avx2>(stream, first_block, out);
}

void sign_blocks_avx2(const Stream& stream, uint32_t first_block, float* out) {
  vector_sign_blocks<Avx2>(stream, first_block, out);
}

}  // namespace rng
}  // namespace zoexport
