// The product with the few trained weights of a matrix whose rest is frozen, added to the product with the rest:
// SensZOQ's SparseAddMM (appendix F, equations 15 and 21), for all perturbed copies at once.
//
// All arithmetic is float32, one rounding an operation, and the entries of an output are added in ascending order, so
// the results are the same bits on every machine, with every form and variant, and in
// exporter/zoexport/ir/sparse_ops.py.
#pragma once

#include <cstddef>
#include <cstdint>

#include "product_variants.h"
#include "rng/variants.h"

namespace zoexport {
namespace kernels {

// out[r, n] = y[r, n] + sum over e ascending, places[e] = n * K + k, of value(r, e) * x[r, k].
//
// The rows are 2 * queries copies of as many, one after the other. With v the half at values[e] and z_i(e) the normal
// of element e of the tensor at query i (docs/noise.md): value is v + (epsilon * z_i(e)) in copy 2i, v - (epsilon *
// z_i(e)) in copy 2i+1. Where epsilon is 0 it is v, and the rows need be no copies. No value is kept longer than its
// chunk.
struct SparseProduct {
  size_t rows;
  size_t N;
  size_t K;
  const float* x;          // (rows, K)
  const float* y;          // (rows, N)
  const uint16_t* values;  // half bits, of all matrices of the model
  const int32_t* places;   // of each in its own matrix
  size_t begin;            // of values and places, entries begin .. end-1 are of this matrix
  size_t end;
  float epsilon;
  uint64_t seed;
  uint32_t step;
  uint32_t tensor_id;
  uint32_t queries;  // at least 1
  float* out;        // (rows, N); overlaps nothing
};

// Return whether the rows divide into the perturbed copies.
bool sparse_rows_fit(const SparseProduct& product);

// Return whether the indices ascend and lie within the matrix.
bool sparse_places_fit(const SparseProduct& product);

// Two algorithms with the same bits. kRows reads x and writes y at an entry's indices, a few rows at a time. kTiles
// transposes x and y, so that an entry is a multiplication and an addition of vectors: better for many entries.
enum class SparseForm { kRows, kTiles };

// The faster one, as tests/cpp/bench_sparse.cpp measures.
SparseForm sparse_form(const SparseProduct& product);

// Tasks as in products.h. A task is some rows of both copies of a query, which share the noise.
Tasks tasks_of(const SparseProduct& product, const SparseKernels& kernels = *fastest_products().sparse);

// The product must fit. Returns false if there is no memory for tiles. The thread keeps that memory: 512 KB, or what
// one tile of each copy takes.
bool run_tasks(const SparseProduct& product, size_t begin, size_t end, SparseForm form,
               const SparseKernels& kernels = *fastest_products().sparse,
               rng::NoiseBlocks normal_blocks = rng::fastest().normal_blocks);

}  // namespace kernels
}  // namespace zoexport
