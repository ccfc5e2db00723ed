// Attention of a few tokens over the keys and values of the tokens before them, which a cache holds, and of each other.
#pragma once

#include <cstddef>

#include "products.h"

namespace zoexport {
namespace kernels {

// Query head h reads group h / (heads / groups) of keys and values; groups divides heads. All arrays are dense.
struct CachedAttention {
  const float* q;       // (heads, tokens, depth)
  const float* k;       // (groups, tokens, depth)
  const float* v;       // (groups, tokens, width)
  const float* keys;    // (groups, rows, depth): that at position p in row p % rows, of the newest positions
  const float* values;  // (groups, rows, width), likewise
  const float* slopes;  // (heads), added to a score for each token that a key comes after the query; or null
  size_t heads;
  size_t groups;
  size_t tokens;
  size_t depth;
  size_t width;
  size_t rows;
  size_t first;   // the position of the first token
  float scale;    // of scores
  float softcap;  // c of c * tanh(score / c); 0: none
  size_t window;  // tokens that a query sees, itself the last; 0: all up to itself
  float* out;     // (heads, tokens, width)
};

// Return whether the cache still holds all that the tokens see: at most `rows` tokens before the first.
bool cache_reaches(const CachedAttention& attention);

// Tasks 0 .. heads * tokens - 1, each a query of one head; any thread can run any range of them. Results depend neither
// on how tokens are split over calls nor on threads. Returns false if there is no memory for the scores of one query.
bool run_queries(const CachedAttention& attention, size_t begin, size_t end,
                 const ProductKernels& kernels = fastest_kernels());

// Queries that are worth a thread.
size_t queries_of_a_thread(const CachedAttention& attention);

}  // namespace kernels
}  // namespace zoexport
