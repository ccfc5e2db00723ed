// Noise of kBlocks blocks on the vectors of an instruction set. A file that is compiled for one describes its vectors by a
// type V and calls vector_normal_blocks<V> and vector_sign_blocks<V>; the formulas are normal.h's and philox.h's, so the
// bits are too. Beside what vector_philox.h asks for V has
//
//   as_float, as_bits, to_float    as Scalar's in normal.h
//   sqrt                rounded as IEEE says
//   first_lanes()       0, 1, 2, ...
//   store(out, e0, e1, e2, e3)     the lanes by turns: e0[0] e1[0] e2[0] e3[0] e0[1] ...; out need not be aligned
#pragma once

#include "normal.h"
#include "vector_philox.h"

namespace zoexport {
namespace rng {
namespace detail {

// What Elements::of(the four words of V::kLanes blocks, their elements) makes of kBlocks blocks.
template <typename V, typename Elements>
inline void vector_blocks(const Stream& stream, uint32_t first_block, float* out) {
  constexpr size_t kStep = kTogether * V::kLanes;
  static_assert(kBlocks % kStep == 0, "blocks are made kStep at a time");
  for (size_t begin = 0; begin < kBlocks; begin += kStep) {
    typename V::Word word[4][kTogether];
    for (size_t i = 0; i < kTogether; ++i) {
      word[0][i] = V::first_lanes() + (first_block + static_cast<uint32_t>(begin + i * V::kLanes));
    }
    vector_philox<V>(stream, word);
    for (size_t i = 0; i < kTogether; ++i) {
      const typename V::Word words[4] = {word[0][i], word[1][i], word[2][i], word[3][i]};
      typename V::Float element[4];
      Elements::of(words, element);
      V::store(out + 4 * (begin + i * V::kLanes), element[0], element[1], element[2], element[3]);
    }
  }
}

template <typename V>
struct VectorNormals {
  static void of(const typename V::Word (&words)[4], typename V::Float (&element)[4]) {
    for (size_t half = 0; half < 4; half += 2) {
      const typename V::Float radius = V::sqrt(minus_two_ln<V>(words[half]));
      typename V::Float sine, cosine;
      sine_cosine<V>(words[half + 1], sine, cosine);
      element[half] = radius * cosine;
      element[half + 1] = radius * sine;
    }
  }
};

template <typename V>
struct VectorSigns {
  static void of(const typename V::Word (&words)[4], typename V::Float (&element)[4]) {
    for (size_t i = 0; i < 4; ++i) {
      // The sign bit of 1 is the word's top bit.
      element[i] = V::as_float((words[i] & 0x80000000u) | 0x3F800000u);
    }
  }
};

}  // namespace detail

template <typename V>
inline void vector_normal_blocks(const Stream& stream, uint32_t first_block, float* out) {
  detail::vector_blocks<V, detail::VectorNormals<V>>(stream, first_block, out);
}

template <typename V>
inline void vector_sign_blocks(const Stream& stream, uint32_t first_block, float* out) {
  detail::vector_blocks<V, detail::VectorSigns<V>>(stream, first_block, out);
}

}  // namespace rng
}  // namespace zoexport
