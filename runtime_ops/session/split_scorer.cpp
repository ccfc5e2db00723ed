#include "session/split_scorer.h"

#include <algorithm>

#include "kernels/zeroth_order.h"
#include "session/slot_values.h"

namespace zoexport {

StateValues SplitScorer::perturbed(size_t stage, uint32_t copy, const CallScalars& scalars, const StateValues& state) {
  if (mode_ == Copies::kPlain) {
    return state;
  }
  const uint32_t query = mode_ == Copies::kAll ? copy / 2 : static_cast<uint32_t>(scalars.query);
  const float sign = mode_ == Copies::kOne ? scalars.sign : copy % 2 == 0 ? 1.0f : -1.0f;
  const std::vector<size_t>& slots = stages_.trainable(stage);
  perturbed_.resize(std::max(perturbed_.size(), slots.size()));
  for (size_t i = 0; i < slots.size(); ++i) {
    const SlotSpec& spec = stages_.slots().spec(slots[i]);
    perturbed_[i].resize(std::max<size_t>(perturbed_[i].size(), spec.elements));
    const auto* values = static_cast<const float*>(state(slots[i]));  // as the manifest was checked for
    kernels::zo_perturb_one(values, spec.elements, sign * scalars.epsilon, scalars.seed,
                            static_cast<uint32_t>(scalars.step), query, spec.tensor_id, perturbed_[i].data());
  }
  return [this, &slots, &state](size_t slot) -> const void* {
    const auto found = std::find(slots.begin(), slots.end(), slot);
    return found == slots.end() ? state(slot) : perturbed_[static_cast<size_t>(found - slots.begin())].data();
  };
}

Status SplitScorer::run(const Call& call, const CallScalars& scalars, Slots& slots, const StateValues& state, bool next) {
  const std::vector<float> none(queries_, 0.0f);
  for (size_t i = 0; next && i < slots.size(); ++i) {
    if (!slots.trainable(i)) {
      continue;
    }
    const SlotSpec& spec = slots.spec(i);
    const std::vector<float>& gradients = scalars.gradients != nullptr ? *scalars.gradients : none;
    const SlotUpdate update{gradients.data(), queries_, scalars.learning_rate, scalars.seed,
                            static_cast<uint32_t>(scalars.step)};
    if (!update_values(spec, update, state(i), slots.next(i))) {
      return Failure{ZO_STATE_ERROR, "step " + std::to_string(scalars.step), "gradients of a step before the first",
                     "none", "Start again in another state folder."};
    }
  }
  const StateValues master = [&](size_t slot) -> const void* {
    return next && slots.trainable(slot) ? slots.next(slot) : state(slot);
  };
  // Copy c reads and writes regions 2c and 2c + 1 in turn.
  const size_t region = stages_.activation_bytes(call.length);
  const size_t total = 2 * copies() * region;
  Scratch& scratch = stages_.scratch();
  ZO_TRY(scratch.reserve(total));
  const auto place = [&](uint32_t copy, size_t stage) { return scratch.data() + (2 * copy + stage % 2) * region; };
  for (size_t stage = 0; stage < stages_.head(); ++stage) {
    for (uint32_t copy = 0; copy < copies(); ++copy) {
      const StateValues seen = perturbed(stage, copy, scalars, master);
      StageValues values;
      values.tokens = call.tokens.data();
      values.activations = place(copy, stage);
      values.next_activations = place(copy, stage + 1);
      values.state = &seen;
      ZO_TRY(stages_.forward(stage, call.length, values));
    }
  }
  entries_ = call.owners.size();
  logprobs_.resize(copies() * entries_);
  is_argmax_.resize(entries_);
  for (uint32_t copy = 0; copy < copies(); ++copy) {
    const StateValues seen = perturbed(stages_.head(), copy, scalars, master);
    const auto* activation = reinterpret_cast<const float*>(place(copy, stages_.head()));
    ZO_TRY(head_.score(call, activation, seen, logprobs_.data() + copy * entries_, is_argmax_.data()));
  }
  scratch.release(0, total);
  return {};
}

}  // namespace zoexport
