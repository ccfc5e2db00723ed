// A slot's values as float32; they lie in the slot's own dtype: float32, or float16 as patterns of 16 bits. Values of
// integers pass as they are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "session/manifest/manifest.h"

namespace zoexport {

// The values as float32, exactly.
void read_values(const SlotSpec& slot, const void* values, float* out);

// float32 as a slot has it: to nearest, ties to even.
void write_values(const SlotSpec& slot, const float* in, void* values);

// Return whether all values of a float slot are finite; integers always are.
bool all_finite(const SlotSpec& slot, const void* values);

// The largest magnitude of a float16 slot, infinite ones included; NaN counts as more.
float largest_half(const SlotSpec& slot, const void* values);

}  // namespace zoexport
