// Gathered rows of packed integers as numbers: int4 with a scale for each group of a row, or int8 as they are.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "bindings.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const bool IS_INT4 = true;
layout(constant_id = 1) const bool HALF_TO = false;

layout(push_constant) uniform Sizes {
  uint elements;
  uint codes, scales, group, to;
}
of;

void main() {
  const uint threads = gl_NumWorkGroups.x * 128u;
  for (uint index = gl_GlobalInvocationID.x; index < of.elements; index += threads) {
    if (IS_INT4) {
      const uint code = (pool_words[of.codes + index / 8u] >> (4u * (index % 8u))) & 15u;
      const uint group = index / of.group;
      put(HALF_TO, of.to + index, (float(code) - 8.0) * bfloat16_of(pool_words[of.scales + group / 2u], group));
    } else {
      const uint word = pool_words[of.codes + index / 4u];
      put(HALF_TO, of.to + index, float(bitfieldExtract(int(word), int(8u * (index % 4u)), 8)));
    }
  }
}
