#include "session/train/optimizer.h"

#include <cmath>

namespace zoexport {

// Each constant is computed in double and rounded once, as torch does for float32 tensors.
void adamw(const UpdateSettings& settings, const UpdateArrays& arrays) {
  constexpr double kBeta1 = 0.9, kBeta2 = 0.999;
  const auto update = static_cast<double>(settings.update);
  const double correction1 = 1 - std::pow(kBeta1, update);
  const double correction2 = 1 - std::pow(kBeta2, update);
  const auto decay = static_cast<float>(1 - settings.learning_rate * settings.weight_decay);
  const auto weight1 = static_cast<float>(1 - kBeta1);
  const auto beta2 = static_cast<float>(kBeta2);
  const auto weight2 = static_cast<float>(1 - kBeta2);
  const auto root2 = static_cast<float>(std::sqrt(correction2));
  const auto step = static_cast<float>(-settings.learning_rate / correction1);
  const auto eps = static_cast<float>(1e-8);
  for (size_t i = 0; i < arrays.n; ++i) {
    const float g = arrays.gradient[i] * settings.scale;
    const float m = arrays.moments[0][i] + weight1 * (g - arrays.moments[0][i]);
    const float v = arrays.moments[1][i] * beta2 + weight2 * g * g;
    arrays.next_moments[0][i] = m;
    arrays.next_moments[1][i] = v;
    arrays.next_value[i] = arrays.value[i] * decay + step * m / (std::sqrt(v) / root2 + eps);
  }
}

void sgd(const UpdateSettings& settings, const UpdateArrays& arrays) {
  const auto learning_rate = static_cast<float>(settings.learning_rate);
  const auto momentum = static_cast<float>(settings.momentum);
  const auto decay = static_cast<float>(settings.weight_decay);
  for (size_t i = 0; i < arrays.n; ++i) {
    const float g = arrays.gradient[i] * settings.scale + decay * arrays.value[i];
    const float m = momentum * arrays.moments[0][i] + g;
    arrays.next_moments[0][i] = m;
    arrays.next_value[i] = arrays.value[i] - learning_rate * m;
  }
}

}  // namespace zoexport
