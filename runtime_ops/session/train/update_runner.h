// Applies a step's pending gradients to the slots of a split bundle: with its program `update`, where it has one, else
// with the kernel.
#pragma once

#include <vector>

#include "session/programs/call_inputs.h"
#include "session/programs/programs.h"
#include "session/state/slots.h"
#include "session/train/slot_updates.h"

namespace zoexport {

class UpdateRunner {
 public:
  // A failure says what of the program is not as docs/bundle.md has it. References outlive this object.
  static Result<UpdateRunner> create(const Manifest& manifest, Programs& programs, const SlotUpdates& updates);

  uint32_t queries() const { return queries_; }

  // Writes the next values of trainable slots: those of `state` with the scalars' gradients applied.
  Status run(const CallScalars& scalars, const StateValues& state, Slots& slots);

 private:
  UpdateRunner(const ProgramSpec* program, Programs& programs, const SlotUpdates& updates, uint32_t queries)
      : program_(program), programs_(programs), updates_(updates), queries_(queries), none_(queries, 0.0f) {}

  const ProgramSpec* program_;  // null: the kernel
  Programs& programs_;
  SlotUpdates updates_;
  uint32_t queries_;
  std::vector<float> none_;  // the gradients where nothing is pending
  NoiseInputs noise_;
};

}  // namespace zoexport
