// The rounds of Philox on the vectors of an instruction set. A file that is compiled for one describes its vectors by a
// type V:
//
//   kLanes              blocks in one vector: 4, 8 or 16
//   Float, Word         vectors of float and of uint32_t, with the operators of GCC's and clang's vector extension
//   multiply(a, m, low, high)      the halves of the 64-bit products of a's lanes and m
//
// and with more for what is made of the words (vector_noise.h, vector_levels.h).
//
// V lies in an anonymous namespace, so nothing that is made from it has external linkage. Otherwise the linker, which
// keeps one copy of an inline function, could keep one that only newer processors can run. For the same reason these
// files call no inline function that others may call, the standard library's included. A test of the build looks at the
// symbols (cmake/check_no_weak_symbols.cmake).
#pragma once

#include "philox.h"

namespace zoexport {
namespace rng {
namespace detail {

// Vectors that go through the rounds together: one alone would wait for each of its products.
inline constexpr size_t kTogether = 4;

// The words, one array each, of the blocks in word[0].
template <typename V>
inline void vector_philox(const Stream& stream, typename V::Word (&word)[4][kTogether]) {
  for (size_t i = 0; i < kTogether; ++i) {
    const typename V::Word zero = {};
    word[1][i] = zero + stream.tensor_id;
    word[2][i] = zero + stream.query;
    word[3][i] = zero + stream.step;
  }
  uint32_t k0 = static_cast<uint32_t>(stream.seed);
  uint32_t k1 = static_cast<uint32_t>(stream.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (size_t i = 0; i < kTogether; ++i) {
      typename V::Word low0, high0, low1, high1;
      V::multiply(word[0][i], 0xD2511F53u, low0, high0);
      V::multiply(word[2][i], 0xCD9E8D57u, low1, high1);
      word[0][i] = high1 ^ word[1][i] ^ k0;
      word[1][i] = low1;
      word[2][i] = high0 ^ word[3][i] ^ k1;
      word[3][i] = low0;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

}  // namespace detail
}  // namespace rng
}  // namespace zoexport
