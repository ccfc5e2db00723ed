// What every shader reads and writes: the pool of tensors, seen as floats or as words, a window of weights, and where the
// tensors of row programs lie. Offsets are in words of 4 bytes.
layout(set = 0, binding = 0) buffer Pool {
  float pool[];
};
layout(set = 0, binding = 0) readonly buffer PoolWords {
  uint pool_words[];
};
layout(set = 0, binding = 1) readonly buffer Window {
  uint window[];
};
layout(set = 0, binding = 2) readonly buffer Code {
  uint code[];
};

// The bfloat16 with the number `index` among those from word `at` on, two a word, the even one low.
float bfloat16_of(uint word, uint index) {
  return uintBitsToFloat((index & 1u) == 0u ? word << 16 : word & 0xFFFF0000u);
}
