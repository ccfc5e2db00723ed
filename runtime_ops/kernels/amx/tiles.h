// AMX's tiles. In an anonymous namespace: each file that is compiled for these instructions has its own.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace zoexport {
namespace kernels {
namespace {

constexpr size_t kTileRows = 16;
constexpr size_t kTileRowBytes = 64;

// The shapes of the eight tiles; those that are not set do not exist.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(size_t tile, size_t count, size_t bytes) {
    rows[tile] = static_cast<uint8_t>(count);
    row_bytes[tile] = static_cast<uint16_t>(count == 0 ? 0 : bytes);
  }
};
static_assert(sizeof(TileShapes) == 64, "as LDTILECFG reads it");

// Gives this thread its tiles, until it calls _tile_release: what is not in its first state the system saves at each
// switch. (No object does that, since what ends objects refers to a weak symbol.)
void take_tiles(const TileShapes& shapes) {
  asm volatile("" : : "r"(&shapes) : "memory");  // GCC 12 does not know that all 64 bytes are read
  _tile_loadconfig(&shapes);
}

}  // namespace
}  // namespace kernels
}  // namespace zoexport
