#include "session/train/moments.h"

#include <algorithm>

namespace zoexport {
namespace {

// beta^i over the sum of all of them, i = 0 .. count - 1.
std::vector<double> weights(double beta, size_t count) {
  std::vector<double> found(count);
  double power = 1, sum = 0;
  for (double& weight : found) {
    weight = power;
    sum += power;
    power *= beta;
  }
  for (double& weight : found) {
    weight /= sum;
  }
  return found;
}

}  // namespace

std::vector<kernels::MomentStep> moment_steps(const UpdateRule& rule, const History& history, size_t first,
                                              uint32_t queries) {
  const size_t count = std::min<size_t>(rule.horizon, history.count);
  const bool adam = rule.kind == UpdateKind::kAdam;
  const std::vector<double> means = weights(rule.beta1, count);
  const std::vector<double> squares = weights(adam ? rule.beta2 : 0, count);
  const double q = adam ? queries : 1;
  std::vector<kernels::MomentStep> steps;
  for (size_t i = 0; i < count; ++i) {
    const Record& record = history.records[history.count - 1 - i];
    if (means[i] != 0 || squares[i] != 0) {
      steps.push_back({record.gradients.data() + first, record.step, static_cast<float>(means[i] / q),
                       static_cast<float>(squares[i] / (q * q))});
    }
  }
  return steps;
}

kernels::Moments moments_of(const UpdateRule& rule, const std::vector<kernels::MomentStep>& steps, float learning_rate,
                            uint32_t queries, uint64_t seed) {
  const bool adam = rule.kind == UpdateKind::kAdam;
  return {steps.data(), steps.size(), queries, adam ? learning_rate : learning_rate / static_cast<float>(queries),
          adam,         seed};
}

}  // namespace zoexport
