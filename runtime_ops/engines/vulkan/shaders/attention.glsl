// Attention in tiles of 32 queries and 32 keys, as runtime_ops/kernels/attention.h defines it. A workgroup of 128
// threads computes 64 columns of its results, so that their sums fit in registers for any width of a head; each slice
// recomputes the scores. No two workgroups add to one result, so results do not depend on their order.
#include "bindings.glsl"
#include "math.glsl"

const uint TILE = 32, DEPTH = 16, SLICE = 64, THREADS = 128;
// float32's, with which masks hide scores: a row of hidden ones alone has none above it.
const float LOWEST = -3.402823466e38;
layout(local_size_x = 128) in;

layout(push_constant) uniform Sizes {
  uint tokens, heads, groups, depth, width;
  float scale;
  uint causal, span;  // tokens that a query sees, itself the last; 0: all
  uint q, k, v, bias, out_, lse, gradient, dq, dk, dv;
  uint first, past;  // heads of a group that gradients of keys and values are made of, or added
}
of;
layout(constant_id = 0) const bool HALF_TENSORS = false;  // all but bias and lse
const uint NONE = 0xFFFFFFFFu;

shared float left[DEPTH][TILE + 1];
shared float right[DEPTH][TILE + 1];
shared float parts[TILE * 4];

// Batch and slice share one axis of the grid.
uint slices(uint width) {
  return (width + SLICE - 1u) / SLICE;
}

bool sees(uint query, uint key) {
  return query < of.tokens && key < of.tokens &&
         (of.causal == 0u || (key <= query && (of.span == 0u || query - key < of.span)));
}

// Keys that some query of a tile sees: tiles from the first to below the second.
uvec2 key_tiles(uint query0) {
  const uint last = min(query0 + TILE, of.tokens);
  const uint first = of.causal != 0u && of.span != 0u && query0 + 1u > of.span ? query0 + 1u - of.span : 0u;
  return uvec2(first / TILE, ((of.causal != 0u ? last : of.tokens) + TILE - 1u) / TILE);
}

// Products of rows of x with rows of y, `width` numbers each, for the pairs of this thread: x row ty + 8 i, y row tx + 16 j.
// x row r begins at x + (x0 + r) * x_pitch, and only rows below `tokens` are there.
void multiply(uint x, uint x0, uint x_pitch, uint y, uint y0, uint y_pitch, uint width, out float sums[4][2]) {
  const uint thread = gl_LocalInvocationIndex, tx = thread % 16u, ty = thread / 16u;
  for (uint i = 0u; i < 4u; ++i) {
    sums[i][0] = 0.0;
    sums[i][1] = 0.0;
  }
  for (uint depth0 = 0u; depth0 < width; depth0 += DEPTH) {
    barrier();
    for (uint e = thread; e < TILE * DEPTH; e += THREADS) {
      const uint r = e / DEPTH, d = e % DEPTH;
      const bool deep = depth0 + d < width;
      left[d][r] = deep && x0 + r < of.tokens ? get(HALF_TENSORS, x + (x0 + r) * x_pitch + depth0 + d) : 0.0;
      right[d][r] = deep && y0 + r < of.tokens ? get(HALF_TENSORS, y + (y0 + r) * y_pitch + depth0 + d) : 0.0;
    }
    barrier();
    for (uint d = 0u; d < DEPTH; ++d) {
      const float y_0 = right[d][tx], y_1 = right[d][tx + 16u];
      for (uint i = 0u; i < 4u; ++i) {
        const float one = left[d][ty + 8u * i];
        sums[i][0] += one * y_0;
        sums[i][1] += one * y_1;
      }
    }
  }
}

float score_of(float product, uint batch, uint key) {
  const float bias = of.bias != NONE && key < of.tokens ? pool[of.bias + batch * of.tokens + key] : 0.0;
  return product * of.scale + bias;
}
