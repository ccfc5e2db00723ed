#include "session/state/slot_values.h"

#include <algorithm>
#include <cstring>

#include "kernels/half.h"

namespace zoexport {

namespace {

// Without its sign, a number is the larger the larger its bits are; those of infinity and NaN are the largest.
uint16_t largest_bits(const uint16_t* halves, size_t count) {
  uint16_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    largest = std::max<uint16_t>(largest, halves[i] & 0x7FFFu);
  }
  return largest;
}

}  // namespace

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

bool all_finite(const SlotSpec& slot, const void* values) {
  if (slot.integers()) {
    return true;
  }
  if (slot.dtype == ZO_FLOAT16) {
    return largest_bits(static_cast<const uint16_t*>(values), slot.elements) < 0x7C00u;
  }
  const auto* floats = static_cast<const float*>(values);
  int32_t largest = 0;
  for (size_t i = 0; i < slot.elements; ++i) {
    int32_t bits;
    std::memcpy(&bits, floats + i, sizeof(bits));
    largest = std::max(largest, bits & 0x7FFFFFFF);
  }
  return largest < 0x7F800000;
}

float largest_half(const SlotSpec& slot, const void* values) {
  return kernels::half_to_float(largest_bits(static_cast<const uint16_t*>(values), slot.elements));
}

}  // namespace zoexport
