// SHA-256 (FIPS 180-4), with the instructions for it that x86-64 and 64-bit ARM processors may have.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace zoexport {

class Sha256 {
 public:
  // `portable` forces the plain C++ path; tests compare both.
  explicit Sha256(bool portable = false);
  void update(const void* data, size_t size);
  // Ends the message; the object is not used afterwards.
  std::array<uint8_t, 32> finish();

 private:
  using Compress = void (*)(uint32_t state[8], const uint8_t* blocks, size_t count);
  Compress compress_;
  uint32_t state_[8];
  uint64_t length_ = 0;
  uint8_t buffer_[64];
  size_t buffered_ = 0;
};

// 64 lower-case hexadecimal digits.
std::string to_hex(const std::array<uint8_t, 32>& digest);

std::string sha256_hex(const void* data, size_t size);

}  // namespace zoexport
