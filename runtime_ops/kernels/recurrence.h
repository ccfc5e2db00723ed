// Recurrences of a state for each head, and causal convolutions, over tokens: exporter/zoexport/ir/recurrence_ops.py says
// what they are. Each result is added up in one order, by one thread: the same bits on every machine whose exp is the
// same.
#pragma once

#include <cstddef>

namespace zoexport {
namespace kernels {

// S_t = exp(decay_t rates) S_{t-1} + k_t u_t^T, out_t = S_t^T q_t; u_t is v_t or, with beta, the delta rule's.
struct Recurrence {
  const float* q;      // (batches, tokens, key_heads, depth)
  const float* k;      // the same
  const float* v;      // (batches, tokens, heads, width)
  const float* decay;  // (batches, tokens, heads, decays)
  const float* rates;  // (heads, depth), or null for 1
  const float* beta;   // (batches, tokens, heads), or null
  size_t batches;
  size_t tokens;
  size_t heads;
  size_t key_heads;  // divides heads
  size_t depth;
  size_t width;
  size_t decays;  // 1 or depth
};

// The state before and after the tokens, if there is one batch.
struct Carried {
  const float* before;  // (heads, depth, width), or null for zeros
  float* after;         // the same, after `count` tokens; or null
  size_t count;
};

// Heads begin .. end-1 of batches * heads: out (batches, tokens, heads, width). False if there is no memory.
bool run_recurrence(const Recurrence& of, const Carried& carried, float* out, size_t begin, size_t end);

// Gradients of a recurrence from zeros.
struct RecurrenceGradient {
  const float* out;  // (batches, tokens, heads, width), of the result
  size_t parts;      // a multiple of key_heads that divides heads
  float* q;          // (batches, tokens, parts, depth): the heads of a part are added up
  float* k;          // the same
  float* v;          // as v
  float* decay;      // as decay
  float* beta;       // (batches, tokens, heads); zeros without beta
};

// Parts begin .. end-1 of batches * parts. States of every sqrt(tokens) are kept, those between computed again.
bool run_recurrence_gradient(const Recurrence& of, const RecurrenceGradient& gradient, size_t begin, size_t end);

// out_t = bias + sum_i weight[:, window - 1 - i] x_{t - i} or, in reverse, x_{t + i}.
struct CausalConv {
  const float* x;       // (batches, tokens, channels)
  const float* weight;  // (channels, window)
  const float* bias;    // (channels), or null
  size_t batches;
  size_t tokens;
  size_t channels;
  size_t window;
  bool reverse;
  const float* before;  // (rows, channels), of one batch: token t is row t modulo rows; or null for zeros
  size_t rows;
  size_t first;  // token of the first row of x; before token 0 there are zeros
};

// Tokens begin .. end-1 of batches * tokens: out (batches, tokens, channels). False if there is no memory.
bool run_causal_conv(const CausalConv& conv, float* out, size_t begin, size_t end);

}  // namespace kernels
}  // namespace zoexport
