// Noise of kBlocks blocks on the vectors of an instruction set. A file that is compiled for one describes its vectors
// by a type V and calls vector_normal_blocks<V> and vector_sign_blocks<V>; the formulas are normal.h's and philox.h's,
// so the bits are too. In addition to the requirements of vector_philox.h, V has
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

// kTogether vectors, which go through a formula side by side: each step of one would wait for the step before. The
// formulas see numbers as in normal.h's Scalar. Friends of a V's own, as templates over vectors would not be local.
template <typename V>
struct SideBySide {
  // Apply the function to each vector of `from`.
  template <typename To, typename Function, typename... From>
  static To each(const Function& function, const From&... from) {
    To to;
#pragma GCC unroll 4
    for (size_t i = 0; i < kTogether; ++i) {
      to.v[i] = function(from.v[i]...);
    }
    return to;
  }

  struct Word {
    typename V::Word v[kTogether];
    friend Word operator+(const Word& a, uint32_t b) {
      return each<Word>([b](auto lanes) { return lanes + b; }, a);
    }
    friend Word operator-(const Word& a, uint32_t b) {
      return each<Word>([b](auto lanes) { return lanes - b; }, a);
    }
    friend Word operator&(const Word& a, uint32_t b) {
      return each<Word>([b](auto lanes) { return lanes & b; }, a);
    }
    friend Word operator|(const Word& a, uint32_t b) {
      return each<Word>([b](auto lanes) { return lanes | b; }, a);
    }
    friend Word operator<<(const Word& a, int b) {
      return each<Word>([b](auto lanes) { return lanes << b; }, a);
    }
    friend Word operator>>(const Word& a, int b) {
      return each<Word>([b](auto lanes) { return lanes >> b; }, a);
    }
    friend Word operator-(uint32_t a, const Word& b) {
      return each<Word>([a](auto lanes) { return a - lanes; }, b);
    }
    friend Word operator-(const Word& a, const Word& b) {
      return each<Word>([](auto one, auto other) { return one - other; }, a, b);
    }
    friend Word operator&(const Word& a, const Word& b) {
      return each<Word>([](auto one, auto other) { return one & other; }, a, b);
    }
    friend Word operator^(const Word& a, const Word& b) {
      return each<Word>([](auto one, auto other) { return one ^ other; }, a, b);
    }
  };
  struct Float {
    typename V::Float v[kTogether];
    friend Float operator+(const Float& a, float b) {
      return each<Float>([b](auto lanes) { return lanes + b; }, a);
    }
    friend Float operator-(const Float& a, float b) {
      return each<Float>([b](auto lanes) { return lanes - b; }, a);
    }
    friend Float operator*(const Float& a, float b) {
      return each<Float>([b](auto lanes) { return lanes * b; }, a);
    }
    friend Float operator*(float a, const Float& b) {
      return each<Float>([a](auto lanes) { return a * lanes; }, b);
    }
    friend Float operator+(const Float& a, const Float& b) {
      return each<Float>([](auto one, auto other) { return one + other; }, a, b);
    }
    friend Float operator-(const Float& a, const Float& b) {
      return each<Float>([](auto one, auto other) { return one - other; }, a, b);
    }
    friend Float operator*(const Float& a, const Float& b) {
      return each<Float>([](auto one, auto other) { return one * other; }, a, b);
    }
  };
  static Float as_float(const Word& from) { return each<Float>(V::as_float, from); }
  static Word as_bits(const Float& from) { return each<Word>(V::as_bits, from); }
  static Float to_float(const Word& from) { return each<Float>(V::to_float, from); }
  static Float sqrt(const Float& from) { return each<Float>(V::sqrt, from); }
};

// Fill kBlocks blocks by Elements::of(the four words of kTogether vectors of blocks, their elements).
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
    typename SideBySide<V>::Word words[4];
    __builtin_memcpy(words, word, sizeof(words));
    typename SideBySide<V>::Float element[4];
    Elements::of(words, element);
    for (size_t i = 0; i < kTogether; ++i) {
      V::store(out + 4 * (begin + i * V::kLanes), element[0].v[i], element[1].v[i], element[2].v[i], element[3].v[i]);
    }
  }
}

template <typename V>
struct VectorNormals {
  using T = SideBySide<V>;
  static void of(const typename T::Word (&words)[4], typename T::Float (&element)[4]) {
    for (size_t half = 0; half < 4; half += 2) {
      const typename T::Float radius = T::sqrt(minus_two_ln<T>(words[half]));
      typename T::Float sine, cosine;
      sine_cosine<T>(words[half + 1], sine, cosine);
      element[half] = radius * cosine;
      element[half + 1] = radius * sine;
    }
  }
};

template <typename V>
struct VectorSigns {
  using T = SideBySide<V>;
  static void of(const typename T::Word (&words)[4], typename T::Float (&element)[4]) {
    for (size_t i = 0; i < 4; ++i) {
      // The sign bit of 1 is the word's top bit.
      element[i] = T::as_float((words[i] & 0x80000000u) | 0x3F800000u);
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
