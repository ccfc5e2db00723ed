// CRC-32 (IEEE 802.3, as in zlib), for the small records of the trajectory log and for snapshots.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace zoexport {
namespace detail {

constexpr std::array<uint32_t, 256> crc32_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1u) != 0 ? 0xEDB88320u : 0u);
    }
    table[i] = value;
  }
  return table;
}

inline constexpr std::array<uint32_t, 256> kCrc32Table = crc32_table();

}  // namespace detail

// `previous` continues an earlier call over the bytes before these.
inline uint32_t crc32(const void* data, size_t size, uint32_t previous = 0) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  uint32_t crc = ~previous;
  for (size_t i = 0; i < size; ++i) {
    crc = detail::kCrc32Table[(crc ^ bytes[i]) & 0xFFu] ^ (crc >> 8);
  }
  return ~crc;
}

}  // namespace zoexport
