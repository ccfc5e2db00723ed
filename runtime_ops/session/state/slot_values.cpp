#include "session/state/slot_values.h"

#include <cstring>

#include "kernels/half.h"

namespace zoexport {

void read_values(const SlotSpec& slot, const void* values, float* out) {
  if (slot.dtype != ZO_FLOAT16) {
    std::memcpy(out, values, slot.bytes());
    return;
  }
  const auto* halves = static_cast<const uint16_t*>(values);
  for (size_t i = 0; i < slot.elements; ++i) {
    out[i] = kernels::half_to_float(halves[i]);
  }
}

void write_values(const SlotSpec& slot, const float* in, void* values) {
  if (slot.dtype != ZO_FLOAT16) {
    std::memcpy(values, in, slot.bytes());
    return;
  }
  auto* halves = static_cast<uint16_t*>(values);
  for (size_t i = 0; i < slot.elements; ++i) {
    halves[i] = kernels::float_to_half(in[i]);
  }
}

}  // namespace zoexport
