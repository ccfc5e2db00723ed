// What is done with a slot's values, which lie in the slot's own dtype: float32, or float16 as patterns of 16 bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "session/manifest.h"

namespace zoexport {

// The values as float32, exactly.
void read_values(const SlotSpec& slot, const void* values, float* out);

// float32 as a slot has it: to nearest, ties to even.
void write_values(const SlotSpec& slot, const float* in, void* values);

// The gradients of a step, one for each query, and the rate that they are applied with.
struct SlotUpdate {
  const float* gradients;
  size_t queries;
  float lr;
  uint64_t seed;
  uint32_t step;  // the one after theirs
};

// out = in with the update applied, by the kernel of the slot's dtype; `out` may be `in`. A copy where every gradient
// is zero. False, with nothing written, without gradients or where some are of a step before the first.
bool update_values(const SlotSpec& slot, const SlotUpdate& update, const void* in, void* out);

}  // namespace zoexport
