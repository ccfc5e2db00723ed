// Linear layer and embedding over INT4 weights in the packing int4-symmetric-g<G>/1 (docs/formats.md): the scalar
// reference. float32 activations and accumulation, no fused multiply-add, and a fixed order of additions, so a
// result depends neither on the machine, nor on T, nor on how rows are split over threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace zoexport {
namespace kernels {

// A packed matrix (N, K), row-major and dense, read only.
struct Int4Matrix {
  const uint8_t* codes;    // (N, K/2): q + 8, two a byte, the even element in the low nibble
  const uint16_t* scales;  // (N, K/G): bfloat16 bits, positive
  size_t N;
  size_t K;
  size_t group_size;  // G: a multiple of 32 that divides K
};

// Return whether the packing supports the sizes.
bool int4_valid(const Int4Matrix& weight);

// One row of the matrix as K floats.
void int4_dequantize_row(const Int4Matrix& weight, size_t row, float* out);

// y[t, n] = sum_k x[t, k] * w[n, k] (+ bias[n]) for n in begin .. end-1. begin must be a multiple of 4.
//
// x: (T, K) dense. bias: N floats or null. y: (T, N) dense; only columns begin .. end-1 are written. y overlaps
// nothing. Column ranges may run on different threads.
void linear_int4_columns(const float* x, size_t T, const Int4Matrix& weight, const float* bias, size_t begin,
                         size_t end, float* y);

// All N columns. Returns false without writing if the matrix is not valid.
bool linear_int4(const float* x, size_t T, const Int4Matrix& weight, const float* bias, float* y);

// out[t, :] = w[indices[t], :]. indices: T numbers. out: (T, K) dense. Returns false without writing if the matrix is
// not valid or an index lies outside [0, N).
bool embedding_int4(const Int4Matrix& weight, const int64_t* indices, size_t T, float* out);

}  // namespace kernels
}  // namespace zoexport
