// Normals of kBlocks blocks on the vectors of an instruction set. A file that is compiled for one describes its vectors
// by a type V and calls vector_normal_blocks<V>; the formulas are normal.h's, so the bits are too.
//
//   kLanes              blocks in one vector; 4 * kLanes divides kBlocks
//   Float, Word         vectors of float and of uint32_t, with the operators of GCC's and clang's vector extension
//   as_float, as_bits, to_float    as Scalar's in normal.h
//   sqrt                rounded as IEEE says
//   first_lanes()       0, 1, 2, ...
//   multiply(a, m, low, high)      the halves of the 64-bit products of a's lanes and m
//   store(out, e0, e1, e2, e3)     the lanes by turns: e0[0] e1[0] e2[0] e3[0] e0[1] ...; out need not be aligned
//
// V lies in an anonymous namespace, so nothing that is made from it has external linkage. Otherwise the linker, which
// keeps one copy of an inline function, could keep one that only newer processors can run. For the same reason these
// files call no inline function that others may call, the standard library's included. A test of the build looks at the
// symbols (cmake/check_no_weak_symbols.cmake).
#pragma once

#include "normal.h"

namespace zoexport {
namespace rng {
namespace detail {

// Vectors that go through the rounds together: one alone would wait for each of its products.
inline constexpr size_t kTogether = 4;

// The rounds for the blocks that begin at `first`, one array a word.
template <typename V>
inline void vector_philox(const Stream& stream, uint32_t first, typename V::Word (&c)[4][kTogether]) {
  for (size_t i = 0; i < kTogether; ++i) {
    const typename V::Word zero = {};
    c[0][i] = V::first_lanes() + (first + static_cast<uint32_t>(i * V::kLanes));
    c[1][i] = zero + stream.tensor_id;
    c[2][i] = zero + stream.query;
    c[3][i] = zero + stream.step;
  }
  uint32_t k0 = static_cast<uint32_t>(stream.seed);
  uint32_t k1 = static_cast<uint32_t>(stream.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (size_t i = 0; i < kTogether; ++i) {
      typename V::Word low0, high0, low1, high1;
      V::multiply(c[0][i], 0xD2511F53u, low0, high0);
      V::multiply(c[2][i], 0xCD9E8D57u, low1, high1);
      c[0][i] = high1 ^ c[1][i] ^ k0;
      c[1][i] = low1;
      c[2][i] = high0 ^ c[3][i] ^ k1;
      c[3][i] = low0;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

} // namespace detail

template <typename V>
inline void vector_normal_blocks(const Stream& stream, uint32_t first_block, float* out) {
  constexpr size_t kStep = detail::kTogether * V::kLanes;
  static_assert(kBlocks % kStep == 0, "blocks are made kStep at a time");
  for (size_t begin = 0; begin < kBlocks; begin += kStep) {
    typename V::Word word[4][detail::kTogether];
    detail::vector_philox<V>(stream, first_block + static_cast<uint32_t>(begin), word);
    for (size_t i = 0; i < detail::kTogether; ++i) {
      typename V::Float element[4];
      for (size_t half = 0; half < 4; half += 2) {
        const typename V::Float radius = V::sqrt(detail::minus_two_ln<V>(word[half][i]));
        typename V::Float sine, cosine;
        detail::sine_cosine<V>(word[half + 1][i], sine, cosine);
        element[half] = radius * cosine;
        element[half + 1] = radius * sine;
      }
      float* values = out + 4 * (begin + i * V::kLanes);
      V::store(values, element[0], element[1], element[2], element[3]);
    }
  }
}

} // namespace rng
} // namespace zoexport
