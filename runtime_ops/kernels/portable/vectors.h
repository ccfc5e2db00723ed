// The vectors that GCC and clang provide on every processor, without a fused multiply-add, as vector_products.h,
// vector_sparse.h and vector_grid.h ask for them.
// In an anonymous namespace: each file that is compiled for these instructions has its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace zoexport {
namespace kernels {
namespace {

struct Portable {
  static constexpr size_t kLanes = 4, kRows = 4, kVectors = 2, kNarrowRows = 4, kFewRows = 4, kFewVectors = 2;
  typedef float Float __attribute__((vector_size(16)));
  typedef uint32_t Word __attribute__((vector_size(16)));
  typedef int32_t Int __attribute__((vector_size(16)));

  static Float load(const float* from) {
    Float value;
    __builtin_memcpy(&value, from, sizeof(value));
    return value;
  }
  static void store(float* to, Float value) { __builtin_memcpy(to, &value, sizeof(value)); }
  static Float broadcast(float value) { return Float{value, value, value, value}; }
  static Float multiply_add(Float a, Float b, Float c) { return a * b + c; }
  static Float to_float(Word word) { return __builtin_convertvector((Int)word, Float); }
  static Float greatest(Float a, Float b) {
    for (size_t i = 0; i < kLanes; ++i) {
      a[i] = a[i] > b[i] ? a[i] : b[i];
    }
    return a;
  }

  static void load_columns(const char* const (&rows)[kLanes], size_t offset, Word (&out)[4]) {
    uint32_t row[kLanes][4];
    for (size_t lane = 0; lane < kLanes; ++lane) {
      __builtin_memcpy(row[lane], rows[lane] + offset, sizeof(row[lane]));
    }
    for (size_t i = 0; i < 4; ++i) {
      out[i] = Word{row[0][i], row[1][i], row[2][i], row[3][i]};
    }
  }

  static void store_columns(const Word (&in)[4], char* const (&rows)[kLanes], size_t offset) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t row[4] = {in[0][lane], in[1][lane], in[2][lane], in[3][lane]};
      __builtin_memcpy(rows[lane] + offset, row, sizeof(row));
    }
  }

  static Float int4_values(Word word) { return to_float((word & 15u) - 8u); }
  struct Int4Scale {
    Float scale;

    void set(Float value) { scale = value; }
    Float times(Word word, size_t i) const { return int4_values(word >> static_cast<uint32_t>(4 * i)) * scale; }
  };

  static Word spread_int4(const uint8_t* codes) {
    const uint32_t low = codes[0], high = codes[1];
    return Word{low, low >> 4, high, high >> 4};
  }
  static Word spread_int8(const int8_t* codes) {
    Word word = {};
    for (size_t i = 0; i < kLanes; ++i) {
      word[i] = static_cast<uint32_t>(int32_t{codes[i]});
    }
    return word;
  }

  static Int clamp(Int value, int low, int high) {
    for (size_t i = 0; i < kLanes; ++i) {
      value[i] = value[i] < low ? low : value[i] > high ? high : value[i];
    }
    return value;
  }
  static Float least(Float a, Float b) {
    for (size_t i = 0; i < kLanes; ++i) {
      a[i] = a[i] < b[i] ? a[i] : b[i];
    }
    return a;
  }
  static Word to_int(Float value) { return (Word) __builtin_convertvector(value, Int); }
  static bool none(Word word) { return (word[0] | word[1] | word[2] | word[3]) == 0; }

  static Word load_halves(const uint8_t* from) {
    uint16_t half[kLanes];
    __builtin_memcpy(half, from, sizeof(half));
    return Word{half[0], half[1], half[2], half[3]};
  }
  static void store_halves(uint8_t* to, Word word) {
    uint16_t half[kLanes];
    for (size_t i = 0; i < kLanes; ++i) {
      half[i] = static_cast<uint16_t>(word[i]);
    }
    __builtin_memcpy(to, half, sizeof(half));
  }
};

}  // namespace
}  // namespace kernels
}  // namespace zoexport
