// Normals with NEON, which every 64-bit ARM has: four blocks a vector. See vector_normal.h.
#include "rng/neon/vectors.h"
#include "rng/variants.h"
#include "rng/vector_normal.h"

namespace zoexport {
namespace rng {

void normal_blocks_neon(const Stream& stream, uint32_t first_block, float* out) {
  vector_normal_blocks<Neon>(stream, first_block, out);
}

}  // namespace rng
}  // namespace zoexport
