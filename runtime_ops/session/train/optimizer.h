// AdamW and SGD, as torch.optim has them, on one slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace zoexport {

enum class Optimizer { kAdamW, kSgd };

// "adamw" or "sgd".
inline Optimizer optimizer_from_text(const std::string& text) {
  return text == "sgd" ? Optimizer::kSgd : Optimizer::kAdamW;
}

// Values that an optimizer keeps for each value it trains: exp_avg and exp_avg_sq, or the momentum buffer.
inline uint32_t optimizer_moments(Optimizer optimizer) { return optimizer == Optimizer::kAdamW ? 2 : 1; }

struct UpdateSettings {
  double learning_rate = 0;
  double momentum = 0;  // SGD's
  double weight_decay = 0;
  uint64_t update = 1;  // its number, from 1
  float scale = 1;      // of the gradient: what clipping leaves of it
};

// Reads value and moments and writes the next ones: all of n floats. Outputs do not overlap inputs.
struct UpdateArrays {
  size_t n;
  const float* gradient;
  const float* value;
  const float* moments[2];
  float* next_value;
  float* next_moments[2];
};

// Betas 0.9 and 0.999, eps 1e-8, decoupled weight decay.
void adamw(const UpdateSettings& settings, const UpdateArrays& arrays);
// Weight decay as L2, no dampening, no Nesterov momentum.
void sgd(const UpdateSettings& settings, const UpdateArrays& arrays);

}  // namespace zoexport
