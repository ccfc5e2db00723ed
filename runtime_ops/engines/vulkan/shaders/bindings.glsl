// Bindings of every shader: the pool of tensors, seen as floats, words or fp16, a window of weights, and the locations
// of the tensors of row programs. Offsets are in words of 4 bytes, for fp16 tensors in elements. Each shader is also
// compiled with HALF for programs that have such tensors, as fp16 storage is a feature that a device may lack.
#ifdef HALF
#extension GL_EXT_shader_16bit_storage : require
#endif
layout(set = 0, binding = 0) buffer Pool {
  float pool[];
};
layout(set = 0, binding = 0) readonly buffer PoolWords {
  uint pool_words[];
};
#ifdef HALF
layout(set = 0, binding = 0) buffer PoolHalves {
  float16_t pool_halves[];
};
#endif
layout(set = 0, binding = 1) readonly buffer Window {
  uint window[];
};
layout(set = 0, binding = 2) readonly buffer Code {
  uint code[];
};

#ifdef HALF
// What is too large for fp16 becomes infinite whichever way a device rounds, so that it is noticed.
float for_half(float value) {
  return abs(value) > 65504.0 ? value * uintBitsToFloat(0x7F800000u) : value;
}
#endif

float get(const bool is_half, uint at) {
#ifdef HALF
  return is_half ? float(pool_halves[at]) : pool[at];
#else
  return pool[at];
#endif
}

void put(const bool is_half, uint at, float value) {
#ifdef HALF
  if (is_half) {
    pool_halves[at] = float16_t(for_half(value));
    return;
  }
#endif
  pool[at] = value;
}

// The bfloat16 with the number `index` among those from word `at` on, two a word, the even one low.
float bfloat16_of(uint word, uint index) {
  return uintBitsToFloat((index & 1u) == 0u ? word << 16 : word & 0xFFFF0000u);
}
