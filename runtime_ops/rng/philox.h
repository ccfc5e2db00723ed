// Philox4x32-10 and the integers of the noise specification zoexport-philox4x32-10/1 (docs/noise.md).
// Header-only, no state, no allocation. exporter/zoexport/core/rng.py gives the same bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace zoexport {
namespace rng {

inline constexpr const char* kSpecId = "zoexport-philox4x32-10/1";
// Stochastic rounding of tensor t draws from tensor id t | kRounding: independent of t's noise.
inline constexpr uint32_t kRounding = 0x80000000u;
// Dropout of an adapter's inputs draws from tensor id b | kDropout, where b is the id of its second matrix.
inline constexpr uint32_t kDropout = 0x60000000u;
// The tensor id of the shuffle.
inline constexpr uint32_t kShuffle = 0xFFFFFFFFu;

// Key of a stream of words; an element's index selects the word.
struct Stream {
  uint64_t seed;
  uint32_t tensor_id;
  uint32_t query;
  uint32_t step;
};

// Blocks that one call of the block functions makes; a block serves four consecutive elements.
inline constexpr size_t kBlocks = 64;
inline constexpr size_t kElements = 4 * kBlocks;

// A function that makes the noise of kBlocks blocks, first_block .. first_block + kBlocks - 1 (modulo 2^32).
// out: kElements floats; it need not be aligned.
using NoiseBlocks = void (*)(const Stream& stream, uint32_t first_block, float* out);

// The four words of kBlocks consecutive blocks, one array a word so that loops over blocks vectorize.
struct Words {
  uint32_t w[4][kBlocks];
};

// Words of the blocks first_block .. first_block + kBlocks - 1 (modulo 2^32).
inline void philox(const Stream& stream, uint32_t first_block, Words& out) {
  uint32_t* c0 = out.w[0];
  uint32_t* c1 = out.w[1];
  uint32_t* c2 = out.w[2];
  uint32_t* c3 = out.w[3];
  for (size_t i = 0; i < kBlocks; ++i) {
    c0[i] = first_block + static_cast<uint32_t>(i);
    c1[i] = stream.tensor_id;
    c2[i] = stream.query;
    c3[i] = stream.step;
  }
  uint32_t k0 = static_cast<uint32_t>(stream.seed);
  uint32_t k1 = static_cast<uint32_t>(stream.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (size_t i = 0; i < kBlocks; ++i) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[i];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2[i];
      const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c0[i] = n0;
      c1[i] = static_cast<uint32_t>(p1);
      c2[i] = n2;
      c3[i] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// One block alone: counter (c[0..3]) under the key, in place.
inline void philox_block(uint32_t k0, uint32_t k1, uint32_t c[4]) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1;
    c[0] = n0;
    c[1] = static_cast<uint32_t>(p1);
    c[2] = n2;
    c[3] = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// Calls make(stream, first_block, T values[kElements]) for as many runs of blocks as cover the elements
// start .. start + count - 1, and copies those elements to out[0 .. count-1].
template <typename T, typename Make>
inline void fill(const Stream& stream, uint64_t start, size_t count, T* out, Make make) {
  T values[kElements];
  while (count > 0) {
    const size_t skip = static_cast<size_t>(start % 4);
    const size_t taken = std::min(count, kElements - skip);
    make(stream, static_cast<uint32_t>(start / 4), values);
    std::memcpy(out, values + skip, taken * sizeof(T));
    out += taken;
    start += taken;
    count -= taken;
  }
}

// The raw word of each of the elements start .. start + count - 1 (stochastic-rounding bits).
// start + count <= 2^34.
inline void words(const Stream& stream, uint64_t start, size_t count, uint32_t* out) {
  fill(stream, start, count, out, [](const Stream& s, uint32_t first, uint32_t* values) {
    Words word;
    philox(s, first, word);
    for (size_t i = 0; i < kBlocks; ++i) {
      for (size_t j = 0; j < 4; ++j) {
        values[4 * i + j] = word.w[j][i];
      }
    }
  });
}

// The reference: -1 if the top bit of the element's word is set, else +1.
inline void sign_blocks(const Stream& stream, uint32_t first_block, float* out) {
  Words word;
  philox(stream, first_block, word);
  for (size_t i = 0; i < kBlocks; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      out[4 * i + j] = (word.w[j][i] >> 31) != 0 ? -1.0f : 1.0f;
    }
  }
}

// Rademacher signs of the elements start .. start + count - 1. start + count <= 2^34.
inline void signs(const Stream& stream, uint64_t start, size_t count, float* out, NoiseBlocks make = sign_blocks) {
  fill(stream, start, count, out, make);
}

// Factors of a dropout of `share` (from 0 to below 1): 0 or 1 / (1 - share). start + count <= 2^34.
inline void kept(const Stream& stream, uint64_t start, size_t count, double share, float* out) {
  const auto threshold = static_cast<uint32_t>(share * 4294967296.0);
  const auto scale = static_cast<float>(1.0 / (1.0 - share));
  fill(stream, start, count, out, [=](const Stream& s, uint32_t first, float* values) {
    Words word;
    philox(s, first, word);
    for (size_t i = 0; i < kBlocks; ++i) {
      for (size_t j = 0; j < 4; ++j) {
        values[4 * i + j] = word.w[j][i] < threshold ? 0.0f : scale;
      }
    }
  });
}

}  // namespace rng
}  // namespace zoexport
