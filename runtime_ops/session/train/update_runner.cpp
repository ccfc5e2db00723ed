#include "session/train/update_runner.h"

namespace zoexport {

Status UpdateRunner::run(const CallScalars& scalars, const StateValues& state, Slots& slots) {
  if (stages_.has_update()) {
    StageValues values;
    values.scalars = &scalars;
    values.state = &state;
    values.next_state = &slots;
    return stages_.update(values);
  }
  const std::vector<float>& gradients = scalars.gradients != nullptr ? *scalars.gradients : none_;
  const SlotUpdate update{gradients.data(), gradients.size(), scalars.learning_rate, scalars.seed,
                          static_cast<uint32_t>(scalars.step)};
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots.trainable(i) && !updates_.apply(slots.spec(i), update, state(i), slots.next(i))) {
      return Failure{ZO_STATE_ERROR, "step " + std::to_string(scalars.step), "gradients of a step before the first",
                     "none", "Start again in another state folder."};
    }
  }
  return {};
}

}  // namespace zoexport
