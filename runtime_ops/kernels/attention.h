// Attention of all tokens of a row over each other, and its gradient, without a matrix of scores: queries and keys meet in
// tiles, with the softmax made as they come (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"), as
// FlashAttention-2 does (Dao 2023, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning",
// algorithms 1 and 2). The gradient computes scores again, from q, k and the logarithm of each query's sum.
//
// Results do not depend on threads: every sum has an order of its own. An element of out or lse is made by one task, over
// keys in ascending order. Of the gradient, tiles of queries and keys meet in rounds, which follow one another: in a round
// no two tasks share a tile, so that each element adds up its parts in the order of rounds, and within them of heads.
#pragma once

#include <cstddef>

#include "products.h"

namespace zoexport {
namespace kernels {

// Query head h reads group h / (heads / groups) of keys and values; groups divides heads. All arrays are dense, all sizes
// but batches and tokens at least 1, tokens at most 2^30.
struct Attention {
  const float* q;     // (batches, tokens, heads, depth)
  const float* k;     // (batches, tokens, groups, depth)
  const float* v;     // (batches, tokens, groups, width)
  const float* bias;  // (batches, tokens), added to the scores of a key; or null
  size_t batches;
  size_t tokens;
  size_t heads;
  size_t groups;
  size_t depth;
  size_t width;
  float scale;    // of scores
  bool causal;    // queries see tokens up to their own
  size_t window;  // of these the nearest, the own one among them; 0: all. Only where causal
};

struct AttentionResult {
  float* out;  // (batches, tokens, heads, width)
  float* lse;  // (batches, heads, tokens): the logarithm of the sum of exponentials of a query's scores
};

struct AttentionGradient {
  const float* out;   // what run_attention gave
  const float* lse;   // likewise
  const float* dout;  // (batches, tokens, heads, width)
  float* dq;          // (batches, tokens, heads, depth)
  float* dk;          // (batches, tokens, groups, depth)
  float* dv;          // (batches, tokens, groups, width)
};

// Tasks 0 .. count-1; any thread can run any range of them. Both return false if there is no memory for tiles.
Tasks attention_tasks(const Attention& attention);
bool run_attention(const Attention& attention, const AttentionResult& result, size_t begin, size_t end,
                   const ProductKernels& kernels = fastest_kernels());

// Rounds 0 .. count-1, one after the other, of tasks that any threads may run.
size_t gradient_rounds(const Attention& attention);
Tasks gradient_tasks(const Attention& attention, size_t round);
bool run_gradient(const Attention& attention, const AttentionGradient& gradient, size_t round, size_t begin, size_t end,
                  const ProductKernels& kernels = fastest_kernels());

}  // namespace kernels
}  // namespace zoexport
