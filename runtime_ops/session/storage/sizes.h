// Sums and products of sizes that someone else wrote: what does not fit stays at the largest number, which is beyond every
// limit.
#pragma once

#include <cstdint>
#include <string>

namespace zoexport {

inline uint64_t size_sum(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

inline uint64_t size_product(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

// "123 bytes", for messages.
inline std::string bytes_text(uint64_t bytes) {
  return bytes == UINT64_MAX ? "2^64 bytes or more" : std::to_string(bytes) + " bytes";
}

}  // namespace zoexport
