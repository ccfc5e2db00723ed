// Applies a step's pending gradients to the slots: with the bundle's program `update`, where it has one, else with the
// kernel.
#pragma once

#include <vector>

#include "session/programs/stages.h"
#include "session/state/slots.h"
#include "session/train/slot_updates.h"

namespace zoexport {

class UpdateRunner {
 public:
  // `stages` outlives it.
  UpdateRunner(Stages& stages, const SlotUpdates& updates)
      : stages_(stages), updates_(updates), none_(stages.manifest().queries(), 0.0f) {}

  // Writes the next values of trainable slots: those of `state` with the scalars' gradients applied.
  Status run(const CallScalars& scalars, const StateValues& state, Slots& slots);

 private:
  Stages& stages_;
  SlotUpdates updates_;
  const std::vector<float> none_;  // the gradients where nothing is pending
};

}  // namespace zoexport
