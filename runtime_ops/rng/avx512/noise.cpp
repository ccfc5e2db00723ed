// Noise with AVX-512: sixteen blocks a vector. Compiled with -mavx512f; see vector_noise.h.
#include "rng/avx512/vectors.h"
#include "rng/variants.h"
#include "rng/vector_noise.h"

namespace zoexport {
namespace rng {

void normal_blocks_avx512(const Stream& stream, uint32_t first_block, float* out) {
  vector_normal_blocks<Avx512>(stream, first_block, out);
}

void sign_blocks_avx512(const Stream& stream, uint32_t first_block, float* out) {
  vector_sign_blocks<Avx512>(stream, first_block, out);
}

}  // namespace rng
}  // namespace zoexport
