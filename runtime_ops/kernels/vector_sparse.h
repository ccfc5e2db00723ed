// The kernels of sparse_kernels.h on the vectors of an instruction set, as vector_products.h has products: of the type
// V that it asks for these need kLanes, Float, Word, load, store, broadcast, load_columns and
//
//   store_columns(in, rows, offset)    the way back of load_columns: 16 bytes to rows[lane] + offset
//
// and the same care for symbols.
#pragma once

#include "sparse_kernels.h"

namespace zoexport {
namespace kernels {
namespace detail {

inline constexpr size_t kColumns = 4;   // of load_columns and store_columns
inline constexpr size_t kTogether = 4;  // rows that share the reading of an entry

// Rows of a tile: two vectors, as reading an entry costs as much as one.
template <typename V>
inline constexpr size_t kTileRows = 2 * V::kLanes;

template <typename V, size_t R>
void add_some_rows(const SparseEntries& entries, const float* x, size_t K, float* y, size_t N) {
  const float* in[R];
  float* out[R];
  for (size_t r = 0; r < R; ++r) {
    in[r] = x + r * K;
    out[r] = y + r * N;
  }
  for (size_t e = 0; e < entries.count; ++e) {
    const size_t n = static_cast<size_t>(entries.n[e]), k = static_cast<size_t>(entries.k[e]);
    const float value = entries.values[e];
#pragma GCC unroll 8
    for (size_t r = 0; r < R; ++r) {
      out[r][n] = out[r][n] + value * in[r][k];
    }
  }
}

template <typename V>
void add_rows(const SparseEntries& entries, const float* x, size_t rows, size_t K, float* y, size_t N) {
  for (; rows >= kTogether; rows -= kTogether) {
    add_some_rows<V, kTogether>(entries, x, K, y, N);
    x += kTogether * K;
    y += kTogether * N;
  }
  for (; rows > 0; --rows) {
    add_some_rows<V, 1>(entries, x, K, y, N);
    x += K;
    y += N;
  }
}

// tile[j * kRows + r] = from[r * stride + j] for j below count, and back.
template <typename V>
void load_tile(const float* from, size_t stride, size_t count, float* tile) {
  constexpr size_t kRows = kTileRows<V>;
  const size_t whole = count / kColumns * kColumns;
  for (size_t first = 0; first < kRows; first += V::kLanes) {
    const char* rows[V::kLanes];
    for (size_t r = 0; r < V::kLanes; ++r) {
      rows[r] = reinterpret_cast<const char*>(from + (first + r) * stride);
    }
    for (size_t j = 0; j < whole; j += kColumns) {
      typename V::Word column[kColumns];
      V::load_columns(rows, j * sizeof(float), column);
#pragma GCC unroll 4
      for (size_t i = 0; i < kColumns; ++i) {
        V::store(tile + (j + i) * kRows + first, (typename V::Float)column[i]);
      }
    }
  }
  for (size_t j = whole; j < count; ++j) {
    for (size_t r = 0; r < kRows; ++r) {
      tile[j * kRows + r] = from[r * stride + j];
    }
  }
}

template <typename V>
void store_tile(const float* tile, size_t count, float* to, size_t stride) {
  constexpr size_t kRows = kTileRows<V>;
  const size_t whole = count / kColumns * kColumns;
  for (size_t first = 0; first < kRows; first += V::kLanes) {
    char* rows[V::kLanes];
    for (size_t r = 0; r < V::kLanes; ++r) {
      rows[r] = reinterpret_cast<char*>(to + (first + r) * stride);
    }
    for (size_t j = 0; j < whole; j += kColumns) {
      typename V::Word column[kColumns];
#pragma GCC unroll 4
      for (size_t i = 0; i < kColumns; ++i) {
        column[i] = (typename V::Word)V::load(tile + (j + i) * kRows + first);
      }
      V::store_columns(column, rows, j * sizeof(float));
    }
  }
  for (size_t j = whole; j < count; ++j) {
    for (size_t r = 0; r < kRows; ++r) {
      to[r * stride + j] = tile[j * kRows + r];
    }
  }
}

template <typename V>
void add_tile(const SparseEntries& entries, const float* x, size_t first, float* y) {
  constexpr size_t kRows = kTileRows<V>;
  for (size_t e = 0; e < entries.count; ++e) {
    const typename V::Float value = V::broadcast(entries.values[e]);
    float* sum = y + (static_cast<size_t>(entries.n[e]) - first) * kRows;
    const float* in = x + static_cast<size_t>(entries.k[e]) * kRows;
#pragma GCC unroll 2
    for (size_t at = 0; at < kRows; at += V::kLanes) {
      V::store(sum + at, V::load(sum + at) + value * V::load(in + at));
    }
  }
}

}  // namespace detail

template <typename V>
constexpr SparseKernels vector_sparse_kernels() {
  return {detail::add_rows<V>, detail::kTileRows<V>, detail::load_tile<V>, detail::store_tile<V>, detail::add_tile<V>};
}

}  // namespace kernels
}  // namespace zoexport
