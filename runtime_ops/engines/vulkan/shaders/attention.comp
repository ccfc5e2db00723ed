#version 450
#extension GL_GOOGLE_include_directive : require
#include "attention.glsl"

shared float shares[TILE][TILE + 1];
shared float most[TILE];
shared float total[TILE];
shared float kept[TILE];  // what of earlier sums stays, as the greatest score grows

void main() {
  const uint thread = gl_LocalInvocationIndex, tx = thread % 16u, ty = thread / 16u;
  const uint query0 = gl_WorkGroupID.x * TILE, head = gl_WorkGroupID.y;
  const uint batch = gl_WorkGroupID.z / slices(of.width), slice = gl_WorkGroupID.z % slices(of.width);
  const uint group = head / (of.heads / of.groups);
  const uint q = of.q + (batch * of.tokens * of.heads + head) * of.depth;
  const uint k = of.k + (batch * of.tokens * of.groups + group) * of.depth;
  const uint v = of.v + (batch * of.tokens * of.groups + group) * of.width;
  // A thread's results: one column, and 16 of the tile's queries.
  const uint column = slice * SLICE + thread % SLICE, first = thread / SLICE * 16u;
  const uint row = thread / 4u, lane = thread % 4u;
  float sums[16];
  for (uint i = 0u; i < 16u; ++i) {
    sums[i] = 0.0;
  }
  if (thread < TILE) {
    most[thread] = LOWEST;
    total[thread] = 0.0;
  }
  const uvec2 tiles = key_tiles(query0);
  for (uint tile = tiles.x; tile < tiles.y; ++tile) {
    const uint key0 = tile * TILE;
    float products[4][2];
    multiply(q, query0, of.heads * of.depth, k, key0, of.groups * of.depth, of.depth, products);
    for (uint i = 0u; i < 4u; ++i) {
      for (uint j = 0u; j < 2u; ++j) {
        shares[ty + 8u * i][tx + 16u * j] = score_of(products[i][j], batch, key0 + tx + 16u * j);
      }
    }
    barrier();
    // Four threads a query.
    float greatest = LOWEST;
    for (uint j = lane; j < TILE; j += 4u) {
      greatest = sees(query0 + row, key0 + j) ? max(greatest, shares[row][j]) : greatest;
    }
    parts[thread] = greatest;
    barrier();
    const float before = most[row];
    greatest = max(max(parts[4u * row], parts[4u * row + 1u]), max(parts[4u * row + 2u], parts[4u * row + 3u]));
    greatest = max(greatest, before);
    float sum = 0.0;
    for (uint j = lane; j < TILE; j += 4u) {
      const float share = sees(query0 + row, key0 + j) ? exp_of(shares[row][j] - greatest) : 0.0;
      shares[row][j] = share;
      sum += share;
    }
    barrier();
    parts[thread] = sum;
    barrier();
    if (lane == 0u) {
      kept[row] = exp_of(before - greatest);
      most[row] = greatest;
      total[row] = total[row] * kept[row] + ((parts[thread] + parts[thread + 1u]) + (parts[thread + 2u] + parts[thread + 3u]));
    }
    barrier();
    if (column < of.width) {
      for (uint i = 0u; i < 16u; ++i) {
        sums[i] *= kept[first + i];
      }
      for (uint j = 0u; j < min(TILE, of.tokens - key0); ++j) {
        const float value = get(HALF_TENSORS, v + (key0 + j) * of.groups * of.width + column);
        for (uint i = 0u; i < 16u; ++i) {
          sums[i] += shares[first + i][j] * value;
        }
      }
    }
  }
  barrier();
  for (uint i = 0u; column < of.width && i < 16u; ++i) {
    const uint query = query0 + first + i;
    if (query < of.tokens) {
      const uint to = of.out_ + ((batch * of.tokens + query) * of.heads + head) * of.width + column;
      put(HALF_TENSORS, to, sums[i] / total[first + i]);
    }
  }
  if (slice == 0u && thread < TILE && query0 + thread < of.tokens) {
    pool[of.lse + (batch * of.heads + head) * of.tokens + query0 + thread] = most[thread] + log_of(total[thread]);
  }
}
