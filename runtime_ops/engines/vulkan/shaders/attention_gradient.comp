// The gradients of attention, in two dispatches: of queries, a workgroup for each tile of them; and of keys and values.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "attention.glsl"

layout(constant_id = 1) const bool OF_KEYS = false;
layout(constant_id = 2) const bool ADDS = false;  // to what a dispatch of other heads has made

shared float shares[TILE][TILE + 1];
shared float slopes[TILE][TILE + 1];  // the loss's derivative by a score
shared float deltas[TILE];            // of a query: the sum of out times its gradient

// Fills `shares` and `slopes` for the queries from query0 and the keys from key0 of a head.
void fill(uint batch, uint head, uint query0, uint key0) {
  const uint thread = gl_LocalInvocationIndex, tx = thread % 16u, ty = thread / 16u;
  const uint group = head / (of.heads / of.groups);
  const uint q = of.q + (batch * of.tokens * of.heads + head) * of.depth;
  const uint k = of.k + (batch * of.tokens * of.groups + group) * of.depth;
  const uint v = of.v + (batch * of.tokens * of.groups + group) * of.width;
  const uint outs = (batch * of.tokens * of.heads + head) * of.width;
  const uint row = thread / 4u, lane = thread % 4u;
  float sum = 0.0;
  if (query0 + row < of.tokens) {
    const uint at = outs + (query0 + row) * of.heads * of.width;
    for (uint column = lane; column < of.width; column += 4u) {
      sum += get(HALF_TENSORS, of.out_ + at + column) * get(HALF_TENSORS, of.gradient + at + column);
    }
  }
  barrier();
  parts[thread] = sum;
  barrier();
  if (lane == 0u) {
    deltas[row] = (parts[thread] + parts[thread + 1u]) + (parts[thread + 2u] + parts[thread + 3u]);
  }
  float products[4][2], by_shares[4][2];
  multiply(q, query0, of.heads * of.depth, k, key0, of.groups * of.depth, of.depth, products);
  multiply(of.gradient + outs, query0, of.heads * of.width, v, key0, of.groups * of.width, of.width, by_shares);
  for (uint i = 0u; i < 4u; ++i) {
    for (uint j = 0u; j < 2u; ++j) {
      const uint r = ty + 8u * i, c = tx + 16u * j;
      float share = 0.0;
      if (sees(query0 + r, key0 + c)) {
        const float lse = pool[of.lse + (batch * of.heads + head) * of.tokens + query0 + r];
        share = exp_of(score_of(products[i][j], batch, key0 + c) - lse);
      }
      shares[r][c] = share;
      slopes[r][c] = share * (by_shares[i][j] - deltas[r]) * of.scale;
    }
  }
  barrier();
}

void main() {
  const uint thread = gl_LocalInvocationIndex;
  const uint widest = OF_KEYS ? max(of.depth, of.width) : of.depth;
  const uint batch = gl_WorkGroupID.z / slices(widest), slice = gl_WorkGroupID.z % slices(widest);
  const uint column = slice * SLICE + thread % SLICE, first = thread / SLICE * 16u;
  const uint own0 = gl_WorkGroupID.x * TILE;
  float sums[16], value_sums[16];
  for (uint i = 0u; i < 16u; ++i) {
    sums[i] = 0.0;
    value_sums[i] = 0.0;
  }
  if (!OF_KEYS) {
    const uint head = gl_WorkGroupID.y, group = head / (of.heads / of.groups);
    const uvec2 tiles = key_tiles(own0);
    for (uint tile = tiles.x; tile < tiles.y; ++tile) {
      fill(batch, head, own0, tile * TILE);
      for (uint j = 0u; column < of.depth && j < min(TILE, of.tokens - tile * TILE); ++j) {
        const uint key = (batch * of.tokens + tile * TILE + j) * of.groups + group;
        const float value = get(HALF_TENSORS, of.k + key * of.depth + column);
        for (uint i = 0u; i < 16u; ++i) {
          sums[i] += slopes[first + i][j] * value;
        }
      }
    }
    for (uint i = 0u; column < of.depth && i < 16u; ++i) {
      const uint query = own0 + first + i;
      if (query < of.tokens) {
        put(HALF_TENSORS, of.dq + ((batch * of.tokens + query) * of.heads + head) * of.depth + column, sums[i]);
      }
    }
    return;
  }
  const uint group = gl_WorkGroupID.y, count = of.heads / of.groups;
  const uint tiles = (of.tokens + TILE - 1u) / TILE;
  const uint begin = of.causal != 0u ? own0 / TILE : 0u;
  // The last query that sees a key of this tile.
  const uint end = of.causal != 0u && of.span != 0u ? min(tiles, (own0 + TILE - 1u + of.span - 1u) / TILE + 1u) : tiles;
  for (uint head = group * count + of.first; head < group * count + of.past; ++head) {
    for (uint tile = begin; tile < end; ++tile) {
      fill(batch, head, tile * TILE, own0);
      for (uint i = 0u; i < min(TILE, of.tokens - tile * TILE); ++i) {
        const uint query = (batch * of.tokens + tile * TILE + i) * of.heads + head;
        const float of_q = column < of.depth ? get(HALF_TENSORS, of.q + query * of.depth + column) : 0.0;
        const float of_out = column < of.width ? get(HALF_TENSORS, of.gradient + query * of.width + column) : 0.0;
        for (uint j = 0u; j < 16u; ++j) {
          sums[j] += slopes[i][first + j] * of_q;
          value_sums[j] += shares[i][first + j] * of_out;
        }
      }
    }
  }
  for (uint j = 0u; j < 16u; ++j) {
    const uint key = own0 + first + j;
    if (key < of.tokens) {
      const uint at = (batch * of.tokens + key) * of.groups + group;
      if (column < of.depth) {
        const uint to = of.dk + at * of.depth + column;
        put(HALF_TENSORS, to, ADDS ? get(HALF_TENSORS, to) + sums[j] : sums[j]);
      }
      if (column < of.width) {
        const uint to = of.dv + at * of.width + column;
        put(HALF_TENSORS, to, ADDS ? get(HALF_TENSORS, to) + value_sums[j] : value_sums[j]);
      }
    }
  }
}
