// Normals of kBlocks blocks on the vectors of an instruction set. A file that is compiled for one describes its vectors
// by a type V and calls vector_normal_blocks<V>; the formulas are normal.h's, so the bits are too. Beside what
// vector_philox.h asks for V has
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

template <typename V>
inline void vector_normal_blocks(const Stream& stream, uint32_t first_block, float* out) {
  constexpr size_t kStep = detail::kTogether * V::kLanes;
  static_assert(kBlocks % kStep == 0, "blocks are made kStep at a time");
  for (size_t begin = 0; begin < kBlocks; begin += kStep) {
    typename V::Word word[4][detail::kTogether];
    for (size_t i = 0; i < detail::kTogether; ++i) {
      word[0][i] = V::first_lanes() + (first_block + static_cast<uint32_t>(begin + i * V::kLanes));
    }
    detail::vector_philox<V>(stream, word);
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

}  // namespace rng
}  // namespace zoexport
