// The implementations of normal_blocks and sign_blocks that are in this library, and the choice among them. All give the
// same bits.
#pragma once

#include <vector>

#include "normal.h"

namespace zoexport {
namespace rng {

struct Variant {
  const char* name;
  bool runs_here;  // whether this processor and system can run it
  NoiseBlocks normal_blocks;
  NoiseBlocks sign_blocks;
};

// Distribution of perturbation directions.
enum class Noise {
  kNormal,
  kRademacher  // signs
};

// The fastest first. The last is "scalar", the reference, which runs everywhere.
const std::vector<Variant>& variants();

// The first of `among` that runs here. One of them must.
const Variant& fastest(const std::vector<Variant>& among = variants());

// The fastest that makes this noise.
inline NoiseBlocks blocks_of(Noise noise) {
  return noise == Noise::kNormal ? fastest().normal_blocks : fastest().sign_blocks;
}

// One file each, named by the instruction set; which of them exist depends on the architecture.
void normal_blocks_avx2(const Stream& stream, uint32_t first_block, float* out);
void sign_blocks_avx2(const Stream& stream, uint32_t first_block, float* out);
void normal_blocks_avx512(const Stream& stream, uint32_t first_block, float* out);
void sign_blocks_avx512(const Stream& stream, uint32_t first_block, float* out);
void normal_blocks_neon(const Stream& stream, uint32_t first_block, float* out);
void sign_blocks_neon(const Stream& stream, uint32_t first_block, float* out);

}  // namespace rng
}  // namespace zoexport
