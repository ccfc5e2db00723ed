#include "session/programs/head.h"

#include <algorithm>
#include <cstring>

namespace zoexport {

Head::Head(Stages& stages, Pass pass)
    : stages_(stages),
      pass_(pass),
      chunk_(stages.manifest().label_rows),
      rows_(chunk_ * stages.hidden()),
      tokens_(chunk_),
      weights_(chunk_),
      logprobs_(chunk_),
      is_argmax_(chunk_) {}

size_t Head::gather(const Call& call, const float* activation, uint32_t copies, size_t first) {
  const size_t hidden = stages_.hidden();
  const size_t entries = call.owners.size();
  const size_t count = std::min(chunk_, copies * entries - first);
  for (size_t i = 0; i < count; ++i) {
    const size_t entry = (first + i) % entries;
    const size_t row = (first + i) / entries * call.tokens.size() + static_cast<size_t>(call.label_positions[entry]);
    std::memcpy(&rows_[i * hidden], activation + row * hidden, hidden * sizeof(float));
    tokens_[i] = call.label_tokens[entry];
  }
  std::fill(rows_.begin() + static_cast<std::ptrdiff_t>(count * hidden), rows_.end(), 0.0f);
  std::fill(tokens_.begin() + static_cast<std::ptrdiff_t>(count), tokens_.end(), 0);
  return count;
}

Status Head::score(const Call& call, StageValues values, uint32_t copies, float* logprobs, float* is_argmax) {
  if (stages_.manifest().whole()) {
    values.entries = call.label_tokens.size();
    values.label_positions = call.label_positions.data();
    values.label_tokens = call.label_tokens.data();
    values.label_logprobs = logprobs;
    values.label_is_argmax = is_argmax;
    return stages_.run(stages_.head(), pass_, call.length, values);
  }
  const auto* activation = reinterpret_cast<const float*>(values.activations);
  for (size_t first = 0; first < copies * call.owners.size(); first += chunk_) {
    const size_t count = gather(call, activation, copies, first);
    values.activations = reinterpret_cast<const uint8_t*>(rows_.data());
    values.label_tokens = tokens_.data();
    values.label_logprobs = logprobs_.data();
    values.label_is_argmax = is_argmax_.data();
    ZO_TRY(stages_.run(stages_.head(), pass_, call.length, values));
    std::copy_n(logprobs_.begin(), count, logprobs + first);
    std::copy_n(is_argmax_.begin(), count, is_argmax + first);
  }
  return {};
}

Status Head::gradient(const Call& call, const float* activation, const float* weights, const StateValues& state,
                      float* logprobs, float* activation_gradient, const std::function<float*(size_t)>& state_gradient,
                      const std::function<void()>& done) {
  const size_t hidden = stages_.hidden();
  row_gradients_.resize(rows_.size());
  std::memset(activation_gradient, 0, call.tokens.size() * hidden * sizeof(float));
  for (size_t first = 0; first < call.owners.size(); first += chunk_) {
    const size_t count = gather(call, activation, 1, first);
    std::fill(weights_.begin(), weights_.end(), 0.0f);
    std::copy_n(weights + first, count, weights_.begin());
    StageValues values;
    values.activations = reinterpret_cast<const uint8_t*>(rows_.data());
    values.label_tokens = tokens_.data();
    values.label_weights = weights_.data();
    values.label_logprobs = logprobs_.data();
    values.label_is_argmax = is_argmax_.data();
    values.input_gradients = reinterpret_cast<uint8_t*>(row_gradients_.data());
    values.state = &state;
    values.state_gradient = state_gradient;
    ZO_TRY(stages_.run(stages_.head(), Pass::kBackward, call.length, values));
    done();
    std::copy_n(logprobs_.begin(), count, logprobs + first);
    // Entries may share a position: then their gradients add up.
    for (size_t i = 0; i < count; ++i) {
      float* target = activation_gradient + static_cast<size_t>(call.label_positions[first + i]) * hidden;
      for (size_t h = 0; h < hidden; ++h) {
        target[h] += row_gradients_[i * hidden + h];
      }
    }
  }
  return {};
}

}  // namespace zoexport
