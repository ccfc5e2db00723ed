// Zeroth-order state kernels: perturbed copies of a parameter, and its update from projected gradients.
//
// All arithmetic is float32 with one rounding per operation, so the results are the same bits on every machine and in
// exporter/zoexport/ir/ops.py. z(step, query) is the noise of docs/noise.md for the parameter's tensor id: normals, or
// the signs that `noise_blocks` makes. Tensors are dense; n is the number of elements, at most 2^34. Results depend
// neither on how a caller splits work nor on which of rng/variants.h makes the noise. If a kernel takes `first`, its
// arrays are the part of the tensor that begins with this element, a multiple of rng::kElements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rng/variants.h"

namespace zoexport {
namespace kernels {

// out = master - (learning_rate/q) * sum_j gradients[j] * z(step-1, j), j ascending: the update of the step before `step`.
//
// master, out: n floats; they may be the same array, and must not overlap otherwise.
// gradients: q floats. If all are zero nothing is pending: out becomes a copy of master, at any step. Returns false
// without writing if q is 0 or a gradient is pending at step 0.
bool zo_update(const float* master, size_t n, const float* gradients, size_t q, float learning_rate, uint64_t seed,
               uint32_t step, uint32_t tensor_id, float* out,
               rng::NoiseBlocks noise_blocks = rng::fastest().normal_blocks, size_t first = 0);

// zo_update of a master in half (half.h), whose elements are rounded to nearest even in the end; a copy where nothing
// is pending.
bool zo_update_half(const uint16_t* master, size_t n, const float* gradients, size_t q, float learning_rate,
                    uint64_t seed, uint32_t step, uint32_t tensor_id, uint16_t* out,
                    rng::NoiseBlocks noise_blocks = rng::fastest().normal_blocks, size_t first = 0);

// A step whose gradients count in a moment.
struct MomentStep {
  const float* gradients;  // one for each query
  uint32_t step;           // that they were computed in
  float first;             // its weight in the first moment
  float second;            // and in the second
};

struct Moments {
  const MomentStep* steps;
  size_t count;
  size_t q;
  float rate;
  bool divided;  // whether the first moment is divided by the root of the second
  uint64_t seed;
};

// What is added to the root of the second moment.
inline constexpr float kMomentEpsilon = 1e-8f;

// out = master - rate * move, where move is m, or m / (sqrt(v) + kMomentEpsilon) with `divided`. With G_i = sum_j
// gradients_i[j] * z(step_i, j), j ascending,
//   m = sum_i first_i * G_i,  v = sum_i second_i * (G_i * G_i),  i in the order of `steps`.
// No moment is kept: they are made of the noise of all these steps, for kElements elements at a time.
//
// master, out: n floats; they may be the same array, and must not overlap otherwise. If all gradients are zero out becomes
// a copy of master. With one step of weight 1 and the rate learning_rate/q these are the bits of zo_update.
// Returns false, with nothing written, where q or the number of steps is 0.
bool zo_update_moments(const float* master, size_t n, const Moments& moments, uint32_t tensor_id, float* out,
                       rng::NoiseBlocks noise_blocks = rng::fastest().normal_blocks, size_t first = 0);

// out (2q, n), row-major: copy 2i = master + eps * z(step, i), copy 2i+1 = master - eps * z(step, i).
// master and out must not overlap.
void zo_perturb(const float* master, size_t n, float eps, uint64_t seed, uint32_t step, uint32_t tensor_id, uint32_t q,
                float* out, rng::NoiseBlocks noise_blocks = rng::fastest().normal_blocks);

// out (q + 1, n), row-major: copy 0 = master, copy i + 1 = master + eps * z(step, i).
// master and out must not overlap.
void zo_perturb_forward(const float* master, size_t n, float eps, uint64_t seed, uint32_t step, uint32_t tensor_id,
                        uint32_t q, float* out, rng::NoiseBlocks noise_blocks = rng::fastest().normal_blocks);

// out = master + signed_eps * z(step, query). With signed_eps = eps or -eps these are the bits of copies 2*query
// and 2*query+1 of zo_perturb, and with eps those of copy query+1 of zo_perturb_forward. master and out may be the same array.
void zo_perturb_one(const float* master, size_t n, float signed_eps, uint64_t seed, uint32_t step, uint32_t query,
                    uint32_t tensor_id, float* out, rng::NoiseBlocks noise_blocks = rng::fastest().normal_blocks,
                    size_t first = 0);

}  // namespace kernels
}  // namespace zoexport
