// Functions of row programs (exporter/zoexport/targets/vulkan/row_phases.py): row_module.cpp generates `main` for each
// program, as calls of them. Some threads share a row, and a workgroup has as many rows as its threads then serve.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "bindings.glsl"
#include "math.glsl"

const uint THREADS = 64;
layout(local_size_x = 64) in;

layout(push_constant) uniform Sizes {
  uint rows;
  uint lanes;  // threads of a row: a power of two
  uint at;     // of the call in the code: rank, dims, how many reads, where each begins, their strides, where each output begins
}
of;

shared float partial[THREADS];

uint row;
bool inside;

int prepare() {
  const uint workgroup = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  row = workgroup * (THREADS / of.lanes) + gl_LocalInvocationIndex / of.lanes;
  inside = row < of.rows;
  return int(gl_LocalInvocationIndex % of.lanes);
}

// Return where the row of a read begins in the pool.
uint begin_of(const uint read) {
  const uint rank = code[of.at], begins = of.at + rank + 2u, strides = begins + code[of.at + rank + 1u];
  uint left = inside ? row : 0u, begin = code[begins + read];
  for (uint d = rank; d-- > 0u;) {
    const uint size = code[of.at + 1u + d];
    begin += (left % size) * code[strides + read * rank + d];
    left /= size;
  }
  return begin;
}

bool goes_on(const int column, const int width) {
  return inside && column < width;
}

int next_of(const int column) {
  return column + int(of.lanes);
}

float load_of(const uint begin, const int place, const int width) {
  return pool[begin + uint(clamp(place, 0, width - 1))];
}

#ifdef HALF
float load_half_of(const uint begin, const int place, const int width) {
  return float(pool_halves[begin + uint(clamp(place, 0, width - 1))]);
}
#endif

float choose_of(const float a, const float b, const int column, const int low, const int high) {
  return column >= low && column < high ? a : b;
}

uint place_of(const uint number, const int width, const int column) {
  const uint rank = code[of.at], count = code[of.at + rank + 1u];
  return code[of.at + rank + 2u + count + count * rank + number] + row * uint(width) + uint(column);
}

void store_of(const uint number, const int width, const int column, const float value) {
  pool[place_of(number, width, column)] = value;
}

#ifdef HALF
void store_half_of(const uint number, const int width, const int column, const float value) {
  pool_halves[place_of(number, width, column)] = float16_t(for_half(value));
}
#endif

// Like torch: NaN if either is NaN.
float op_4(const float a, const float b) { return isnan(a) || a > b ? a : b; }
float op_5(const float a, const float b) { return isnan(a) || a < b ? a : b; }

float total_of(const float value) {
  const uint thread = gl_LocalInvocationIndex, lane = thread % of.lanes;
  barrier();
  partial[thread] = value;
  for (uint half_lanes = of.lanes / 2u; half_lanes > 0u; half_lanes /= 2u) {
    barrier();
    if (lane < half_lanes) {
      partial[thread] += partial[thread + half_lanes];
    }
  }
  barrier();
  return partial[thread - lane];
}

float greatest_of(const float value) {
  const uint thread = gl_LocalInvocationIndex, lane = thread % of.lanes;
  barrier();
  partial[thread] = value;
  for (uint half_lanes = of.lanes / 2u; half_lanes > 0u; half_lanes /= 2u) {
    barrier();
    if (lane < half_lanes) {
      partial[thread] = op_4(partial[thread], partial[thread + half_lanes]);
    }
  }
  barrier();
  return partial[thread - lane];
}

float op_0(const float a, const float b) { return a + b; }
float op_1(const float a, const float b) { return a - b; }
float op_2(const float a, const float b) { return a * b; }
float op_3(const float a, const float b) { return a / b; }
float op_10(const float a) { return -a; }
float op_11(const float a) { return exp_of(a); }
float op_12(const float a) { return log_of(a); }
float op_13(const float a) { return sqrt(a); }
float op_14(const float a) { return 1.0 / sqrt(a); }
float op_15(const float a) { return 1.0 / a; }
float op_16(const float a) { return sigmoid_of(a); }
float op_17(const float a) { return tanh_of(a); }
float op_18(const float a) { return erf_of(a); }
float op_19(const float a) { return abs(a); }
float op_20(const float a, const float b) { return a < b ? 1.0 : 0.0; }
float op_21(const float a, const float b) { return a <= b ? 1.0 : 0.0; }
float op_22(const float a, const float b) { return a > b ? 1.0 : 0.0; }
float op_23(const float a, const float b) { return a >= b ? 1.0 : 0.0; }
float op_24(const float a, const float b) { return a == b ? 1.0 : 0.0; }
float op_25(const float a, const float b) { return a != b ? 1.0 : 0.0; }
float op_26(const float a, const float b, const float c) { return a != 0.0 ? b : c; }

void main() {
  prepare();
}
