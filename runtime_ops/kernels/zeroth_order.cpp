#include "zeroth_order.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "half.h"

namespace zoexport {
namespace kernels {
namespace {

using rng::kElements;
using rng::Stream;

// Calls body(first_block, first element, count) for pieces of n elements. Element 0 is element `first` of its tensor;
// pieces start at whole blocks.
template <typename Body>
void for_pieces(size_t first, size_t n, Body body) {
  for (size_t begin = 0; begin < n; begin += kElements) {
    body(static_cast<uint32_t>((first + begin) / 4), begin, std::min(kElements, n - begin));
  }
}

bool all_zero(const float* gradients, size_t q) {
  return std::all_of(gradients, gradients + q, [](float g) { return g == 0.0f; });
}

// sum = sum_j gradients[j] * z(step, j) of a block, j ascending.
void sum_directions(const float* gradients, size_t q, uint64_t seed, uint32_t step, uint32_t tensor_id, uint32_t block,
                    rng::NoiseBlocks noise_blocks, float* sum) {
  float z[kElements];
  // The sum starts with the first product and not with 0 + product, which would lose the sign of zero.
  noise_blocks(Stream{seed, tensor_id, 0, step}, block, z);
  for (size_t i = 0; i < kElements; ++i) {
    sum[i] = gradients[0] * z[i];
  }
  for (size_t j = 1; j < q; ++j) {
    noise_blocks(Stream{seed, tensor_id, static_cast<uint32_t>(j), step}, block, z);
    const float g = gradients[j];
    for (size_t i = 0; i < kElements; ++i) {
      sum[i] = sum[i] + g * z[i];
    }
  }
}

// zo_update of elements that moved(element, by how much) takes and gives.
template <typename T, typename Moved>
bool update(const T* master, size_t n, const float* gradients, size_t q, float learning_rate, uint64_t seed,
            uint32_t step, uint32_t tensor_id, T* out, rng::NoiseBlocks noise_blocks, size_t first, Moved moved) {
  if (q == 0) {
    return false;
  }
  if (all_zero(gradients, q)) {
    // A copy, not arithmetic: x - 0 would turn a signalling NaN or depend on learning_rate being finite.
    if (n > 0) {
      std::memmove(out, master, n * sizeof(T));
    }
    return true;
  }
  if (step == 0) {
    return false;
  }
  const float scale = learning_rate / static_cast<float>(q);
  for_pieces(first, n, [&](uint32_t block, size_t begin, size_t count) {
    float sum[kElements];
    sum_directions(gradients, q, seed, step - 1, tensor_id, block, noise_blocks, sum);
    for (size_t i = 0; i < count; ++i) {
      out[begin + i] = moved(master[begin + i], scale * sum[i]);
    }
  });
  return true;
}

}  // namespace

bool zo_update(const float* master, size_t n, const float* gradients, size_t q, float learning_rate, uint64_t seed,
               uint32_t step, uint32_t tensor_id, float* out, rng::NoiseBlocks noise_blocks, size_t first) {
  return update(master, n, gradients, q, learning_rate, seed, step, tensor_id, out, noise_blocks, first,
                [](float master, float move) { return master - move; });
}

bool zo_update_half(const uint16_t* master, size_t n, const float* gradients, size_t q, float learning_rate,
                    uint64_t seed, uint32_t step, uint32_t tensor_id, uint16_t* out, rng::NoiseBlocks noise_blocks,
                    size_t first) {
  return update(master, n, gradients, q, learning_rate, seed, step, tensor_id, out, noise_blocks, first,
                [](uint16_t master, float move) { return float_to_half(half_to_float(master) - move); });
}

bool zo_update_moments(const float* master, size_t n, const Moments& moments, uint32_t tensor_id, float* out,
                       rng::NoiseBlocks noise_blocks, size_t first) {
  const MomentStep* const end = moments.steps + moments.count;
  if (moments.q == 0 || moments.count == 0) {
    return false;
  }
  if (std::all_of(moments.steps, end, [&](const MomentStep& step) { return all_zero(step.gradients, moments.q); })) {
    if (n > 0) {
      std::memmove(out, master, n * sizeof(float));
    }
    return true;
  }
  for_pieces(first, n, [&](uint32_t block, size_t begin, size_t count) {
    float sum[kElements];
    float m[kElements];
    float v[kElements];
    for (const MomentStep* step = moments.steps; step != end; ++step) {
      sum_directions(step->gradients, moments.q, moments.seed, step->step, tensor_id, block, noise_blocks, sum);
      const bool starts = step == moments.steps;
      for (size_t i = 0; i < kElements; ++i) {
        const float square = step->second * (sum[i] * sum[i]);
        const float part = step->first * sum[i];
        m[i] = starts ? part : m[i] + part;
        v[i] = starts ? square : v[i] + square;
      }
    }
    for (size_t i = 0; i < kElements && moments.divided; ++i) {
      m[i] = m[i] / (std::sqrt(v[i]) + kMomentEpsilon);
    }
    for (size_t i = 0; i < count; ++i) {
      out[begin + i] = master[begin + i] - moments.rate * m[i];
    }
  });
  return true;
}

void zo_perturb(const float* master, size_t n, float eps, uint64_t seed, uint32_t step, uint32_t tensor_id, uint32_t q,
                float* out, rng::NoiseBlocks noise_blocks) {
  for_pieces(0, n, [&](uint32_t block, size_t begin, size_t count) {
    float z[kElements];
    for (uint32_t query = 0; query < q; ++query) {
      noise_blocks(Stream{seed, tensor_id, query, step}, block, z);
      float* plus = out + (size_t{2} * query) * n + begin;
      float* minus = plus + n;
      for (size_t i = 0; i < count; ++i) {
        const float move = eps * z[i];
        plus[i] = master[begin + i] + move;
        minus[i] = master[begin + i] - move;
      }
    }
  });
}

void zo_perturb_forward(const float* master, size_t n, float eps, uint64_t seed, uint32_t step, uint32_t tensor_id,
                        uint32_t q, float* out, rng::NoiseBlocks noise_blocks) {
  if (n > 0) {
    std::memcpy(out, master, n * sizeof(float));
  }
  for (uint32_t query = 0; query < q; ++query) {
    zo_perturb_one(master, n, eps, seed, step, query, tensor_id, out + (size_t{query} + 1) * n, noise_blocks);
  }
}

void zo_perturb_one(const float* master, size_t n, float signed_eps, uint64_t seed, uint32_t step, uint32_t query,
                    uint32_t tensor_id, float* out, rng::NoiseBlocks noise_blocks, size_t first) {
  for_pieces(first, n, [&](uint32_t block, size_t begin, size_t count) {
    float z[kElements];
    noise_blocks(Stream{seed, tensor_id, query, step}, block, z);
    for (size_t i = 0; i < count; ++i) {
      out[begin + i] = master[begin + i] + signed_eps * z[i];
    }
  });
}

}  // namespace kernels
}  // namespace zoexport
