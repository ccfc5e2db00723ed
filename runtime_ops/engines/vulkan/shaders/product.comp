// out = op(A) op(B) (+ add) (+ bias), of matrices that lie one after another in a batch; op transposes or does nothing. A tile of
// the result is made by a workgroup, from tiles of A and B in shared memory; B may be packed integers, which become numbers
// on their way there. Rows of tensors lie a pitch apart, as they may be parts of longer ones. Sums are made in parts of 2048 products, so that their error does not grow with the depth. A dispatch makes
// the products from `first` to below `past`, multiples of 2048 but for the last, and adds them to those of another.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "bindings.glsl"

const uint ROWS = 64, COLUMNS = 64, DEPTH = 16;
const uint OWN_ROWS = 8, OWN_COLUMNS = 4;  // of a thread
const uint TILES_OF_PART = 128;
layout(local_size_x = 16, local_size_y = 8) in;

const uint POOL = 0, FLOATS = 1, INT4 = 2, INT8 = 3;
layout(constant_id = 0) const uint A_FROM = 0;  // POOL or FLOATS of the window
layout(constant_id = 1) const uint B_FROM = 0;
layout(constant_id = 2) const bool TRANSPOSED_A = false;
layout(constant_id = 3) const bool TRANSPOSED_B = false;
layout(constant_id = 4) const bool ADDS = false;
layout(constant_id = 5) const bool HAS_BIAS = false;
// True for the tensors of the pool that are fp16.
layout(constant_id = 6) const bool HALF_A = false;
layout(constant_id = 7) const bool HALF_B = false;
layout(constant_id = 8) const bool HALF_ADD = false;
layout(constant_id = 9) const bool HALF_BIAS = false;
layout(constant_id = 10) const bool HALF_TO = false;

layout(push_constant) uniform Sizes {
  uint rows, columns, depth;
  uint a, b, scales, group, add, bias, to;
  uint first, past;
  uint a_pitch, b_pitch, pitch;  // elements from a row to the next, as they are stored
}
of;

shared float tile_a[DEPTH][ROWS + 1];
shared float tile_b[DEPTH][COLUMNS + 1];

float a_at(uint index) {
  return A_FROM == POOL ? get(HALF_A, of.a + index) : uintBitsToFloat(window[of.a + index]);
}

float b_at(uint index) {
  return B_FROM == POOL ? get(HALF_B, of.b + index) : uintBitsToFloat(window[of.b + index]);
}

void load_a(uint first, uint row0, uint batch) {
  for (uint e = first; e < ROWS * DEPTH; e += 128u) {
    const uint r = TRANSPOSED_A ? e % ROWS : e / DEPTH;
    const uint d = TRANSPOSED_A ? e / ROWS : e % DEPTH;
    tile_a[d][r] = 0.0;
    const uint row = row0 + r, depth = batch + d;
    if (row < of.rows && depth < of.depth) {
      const uint matrix = gl_WorkGroupID.z * (TRANSPOSED_A ? of.depth : of.rows);
      tile_a[d][r] = a_at((matrix + (TRANSPOSED_A ? depth : row)) * of.a_pitch + (TRANSPOSED_A ? row : depth));
    }
  }
}

void load_b(uint first, uint column0, uint depth0) {
  for (uint e = first; e < COLUMNS * DEPTH; e += 128u) {
    const uint c = TRANSPOSED_B ? e / DEPTH : e % COLUMNS;
    const uint d = TRANSPOSED_B ? e % DEPTH : e / COLUMNS;
    tile_b[d][c] = 0.0;
    const uint column = column0 + c, depth = depth0 + d;
    if (column < of.columns && depth < of.depth) {
      const uint row = TRANSPOSED_B ? column : depth, within = TRANSPOSED_B ? depth : column;
      if (B_FROM == INT8) {
        const uint index = row * of.b_pitch + within;
        const uint word = window[of.b + index / 4u];
        const float scale = uintBitsToFloat(window[of.scales + row]);
        tile_b[d][c] = float(bitfieldExtract(int(word), int(8u * (index % 4u)), 8)) * scale;
      } else {
        const uint matrix = gl_WorkGroupID.z * (TRANSPOSED_B ? of.columns : of.depth);
        tile_b[d][c] = b_at((matrix + row) * of.b_pitch + within);
      }
    }
  }
}

// A thread loads one word, of eight neighbours in a row of the weight, whose width is a multiple of 32.
void load_int4(uint thread, uint column0, uint depth0) {
  const uint width = TRANSPOSED_B ? of.depth : of.columns;
  const uint words = (TRANSPOSED_B ? DEPTH : COLUMNS) / 8u;
  const uint r = thread / words, first = 8u * (thread % words);
  const uint row = (TRANSPOSED_B ? column0 : depth0) + r;
  const uint column = (TRANSPOSED_B ? depth0 : column0) + first;
  const bool inside = row < (TRANSPOSED_B ? of.columns : of.depth) && column < width;
  uint word = 0u;
  float scale = 0.0;
  if (inside) {
    word = window[of.b + (row * width + column) / 8u];
    const uint group = row * (width / of.group) + column / of.group;
    scale = bfloat16_of(window[of.scales + group / 2u], group);
  }
  for (uint i = 0u; i < 8u; ++i) {
    const float value = (float((word >> (4u * i)) & 15u) - 8.0) * scale;
    if (TRANSPOSED_B) {
      tile_b[first + i][r] = value;
    } else {
      tile_b[r][first + i] = value;
    }
  }
}

void main() {
  const uint thread = gl_LocalInvocationIndex;
  const uint row0 = gl_WorkGroupID.y * ROWS, column0 = gl_WorkGroupID.x * COLUMNS;
  const uint tx = gl_LocalInvocationID.x, ty = gl_LocalInvocationID.y;
  float total[OWN_ROWS][OWN_COLUMNS], part[OWN_ROWS][OWN_COLUMNS];
  for (uint i = 0u; i < OWN_ROWS; ++i) {
    for (uint j = 0u; j < OWN_COLUMNS; ++j) {
      total[i][j] = 0.0;
      part[i][j] = 0.0;
    }
  }
  for (uint tile = of.first / DEPTH; tile < (of.past + DEPTH - 1u) / DEPTH; ++tile) {
    load_a(thread, row0, tile * DEPTH);
    if (B_FROM == INT4) {
      load_int4(thread, column0, tile * DEPTH);
    } else {
      load_b(thread, column0, tile * DEPTH);
    }
    barrier();
    for (uint d = 0u; d < DEPTH; ++d) {
      float a[OWN_ROWS], b[OWN_COLUMNS];
      for (uint i = 0u; i < OWN_ROWS; ++i) {
        a[i] = tile_a[d][ty + 8u * i];
      }
      for (uint j = 0u; j < OWN_COLUMNS; ++j) {
        b[j] = tile_b[d][tx + 16u * j];
      }
      for (uint i = 0u; i < OWN_ROWS; ++i) {
        for (uint j = 0u; j < OWN_COLUMNS; ++j) {
          part[i][j] += a[i] * b[j];
        }
      }
    }
    barrier();
    if (tile % TILES_OF_PART == TILES_OF_PART - 1u) {
      for (uint i = 0u; i < OWN_ROWS; ++i) {
        for (uint j = 0u; j < OWN_COLUMNS; ++j) {
          total[i][j] += part[i][j];
          part[i][j] = 0.0;
        }
      }
    }
  }
  for (uint i = 0u; i < OWN_ROWS; ++i) {
    for (uint j = 0u; j < OWN_COLUMNS; ++j) {
      const uint row = row0 + ty + 8u * i, column = column0 + tx + 16u * j;
      if (row < of.rows && column < of.columns) {
        const uint index = (gl_WorkGroupID.z * of.rows + row) * of.pitch + column;
        float value = total[i][j] + part[i][j];
        value += HAS_BIAS ? get(HALF_BIAS, of.bias + column) : 0.0;
        value += ADDS ? get(HALF_ADD, of.add + index) : 0.0;
        put(HALF_TO, of.to + index, value);
      }
    }
  }
}
