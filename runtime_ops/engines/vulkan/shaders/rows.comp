// Row programs in phases (exporter/zoexport/targets/vulkan/row_phases.py): an interpreter, whose registers of one column lie
// in shared memory. Some threads share a row, and a workgroup has as many rows as its threads then serve. Every thread of a
// workgroup runs the same instruction at a time.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "bindings.glsl"
#include "math.glsl"

const uint THREADS = 64, REGISTERS = 40, READS = 32, REDUCTIONS = 16, RESULTS = 8;
const uint MOST_ROWS = 8;  // of a workgroup
layout(local_size_x = 64) in;

layout(push_constant) uniform Sizes {
  uint rows;
  uint lanes;  // threads of a row: a power of two, at least THREADS / MOST_ROWS
  uint at;     // of the program in the code
}
of;

shared float registers[REGISTERS * THREADS];
shared float reduced[REDUCTIONS * MOST_ROWS];
shared uint bases[READS * MOST_ROWS];
shared float partial[THREADS];

const uint CONSTANT = 1u << 30, REDUCED = 1u << 29;

// The program, as RowCall::words lays it out.
uint constants, reads, row_in_group;

float value_of(uint operand) {
  if (operand < REGISTERS) {
    return registers[operand * THREADS + gl_LocalInvocationIndex];
  }
  return operand >= CONSTANT ? uintBitsToFloat(code[constants + operand - CONSTANT])
                             : reduced[(operand - REDUCED) * MOST_ROWS + row_in_group];
}

// As torch: NaN where either is NaN.
float greater(float a, float b) {
  return isnan(a) || a > b ? a : b;
}

float lesser(float a, float b) {
  return isnan(a) || a < b ? a : b;
}

void step_of(uint at, int column) {
  const uint op = code[at], a = code[at + 2u], b = code[at + 3u], c = code[at + 4u];
  float result;
  if (op == 50u) {
    const int place = int(b) + (c == 1u ? 0 : column);
    const int width = int(code[reads + 2u * a + 1u]);
    result = pool[bases[a * MOST_ROWS + row_in_group] + uint(clamp(place, 0, width - 1))];
  } else if (op == 51u) {
    const bool within = column >= int(c) && column < int(code[at + 5u]);
    result = value_of(within ? a : b);
  } else {
    const float x = value_of(a);
    switch (op) {
      case 0u: result = x + value_of(b); break;
      case 1u: result = x - value_of(b); break;
      case 2u: result = x * value_of(b); break;
      case 3u: result = x / value_of(b); break;
      case 4u: result = greater(x, value_of(b)); break;
      case 5u: result = lesser(x, value_of(b)); break;
      case 10u: result = -x; break;
      case 11u: result = exp_of(x); break;
      case 12u: result = log_of(x); break;
      case 13u: result = sqrt(x); break;
      case 14u: result = 1.0 / sqrt(x); break;
      case 15u: result = 1.0 / x; break;
      case 16u: result = sigmoid_of(x); break;
      case 17u: result = tanh_of(x); break;
      case 18u: result = erf_of(x); break;
      case 19u: result = abs(x); break;
      case 20u: result = x < value_of(b) ? 1.0 : 0.0; break;
      case 21u: result = x <= value_of(b) ? 1.0 : 0.0; break;
      case 22u: result = x > value_of(b) ? 1.0 : 0.0; break;
      case 23u: result = x >= value_of(b) ? 1.0 : 0.0; break;
      case 24u: result = x == value_of(b) ? 1.0 : 0.0; break;
      case 25u: result = x != value_of(b) ? 1.0 : 0.0; break;
      default: result = x != 0.0 ? value_of(b) : value_of(c); break;
    }
  }
  registers[code[at + 1u] * THREADS + gl_LocalInvocationIndex] = result;
}

void main() {
  const uint thread = gl_LocalInvocationIndex;
  const uint lane = thread % of.lanes;
  row_in_group = thread / of.lanes;
  const uint workgroup = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  const uint row = workgroup * (THREADS / of.lanes) + row_in_group;
  const bool inside = row < of.rows;

  uint at = of.at;
  const uint rank = code[at], dims = at + 1u;
  at += 1u + rank;
  const uint count = code[at];
  reads = at + 1u;  // begin and width of each
  const uint strides = reads + 2u * count;
  at = strides + rank * count;
  constants = at + 1u;
  at = constants + code[at];
  // Where each read's row begins.
  for (uint k = lane; k < count; k += of.lanes) {
    uint left = inside ? row : 0u, begin = code[reads + 2u * k];
    for (uint d = rank; d-- > 0u;) {
      const uint size = code[dims + d];
      begin += (left % size) * code[strides + k * rank + d];
      left /= size;
    }
    bases[k * MOST_ROWS + row_in_group] = begin;
  }
  barrier();

  const uint phases = code[at++];
  for (uint phase = 0u; phase < phases; ++phase) {
    const uint width = code[at], once = code[at + 1u], steps = code[at + 2u], results = code[at + 3u];
    const uint first = at + 4u, last = first + 6u * steps;
    for (uint s = first; s < first + 6u * once; s += 6u) {
      step_of(s, 0);
    }
    float kept[RESULTS];
    for (uint k = 0u; k < results; ++k) {
      kept[k] = code[last + 3u * k] == 2u ? uintBitsToFloat(0xFF800000u) : 0.0;
    }
    for (uint column = lane; inside && column < width; column += of.lanes) {
      for (uint s = first + 6u * once; s < last; s += 6u) {
        step_of(s, int(column));
      }
      for (uint k = 0u; k < results; ++k) {
        const uint kind = code[last + 3u * k], to = code[last + 3u * k + 2u];
        const float value = value_of(code[last + 3u * k + 1u]);
        if (kind == 0u) {
          pool[to + row * width + column] = value;
        } else {
          kept[k] = kind == 1u ? kept[k] + value : greater(kept[k], value);
        }
      }
    }
    for (uint k = 0u; k < results; ++k) {
      const uint kind = code[last + 3u * k], to = code[last + 3u * k + 2u];
      if (kind == 0u) {
        continue;
      }
      barrier();
      partial[thread] = kept[k];
      for (uint half_lanes = of.lanes / 2u; half_lanes > 0u; half_lanes /= 2u) {
        barrier();
        if (lane < half_lanes) {
          const float other = partial[thread + half_lanes];
          partial[thread] = kind == 1u ? partial[thread] + other : greater(partial[thread], other);
        }
      }
      if (lane == 0u) {
        reduced[to * MOST_ROWS + row_in_group] = partial[thread];
      }
    }
    barrier();
    at = last + 3u * results;
  }
}
