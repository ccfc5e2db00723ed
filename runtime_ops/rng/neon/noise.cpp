// Noise with NEON, which every 64-bit ARM has: four blocks a vector. See vector_noise.h.
#include "rng/neon/vectors.h"
#include "rng/variants.h"
#include "rng/vector_noise.h"

namespace zoexport {
namespace rng {

void normal_blocks_neon(const Stream& stream, uint32_t first_block, float* out) {
  vector_normal_blocks<Neon>(stream, first_block, out);
}

void sign_blocks_neon(const Stream& stream, uint32_t first_block, float* out) {
  vector_sign_blocks<Neon>(stream, first_block, out);
}

}  // namespace rng
}  // namespace zoexport
