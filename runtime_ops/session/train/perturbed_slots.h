// Slots as a perturbed copy of the model sees them.
#pragma once

#include <vector>

#include "engines/engine.h"
#include "session/programs/call_inputs.h"
#include "session/state/slots.h"
#include "session/storage/scratch.h"

namespace zoexport {

// A direction of the noise specification, and how far to go along it.
struct Direction {
  uint64_t seed = 0;
  uint32_t step = 0;
  uint32_t query = 0;
  float distance = 0;  // eps, or -eps
};

class PerturbedSlots {
 public:
  // The values are made in a file without a name in `folder` (see Scratch), as trained slots may be as long as a model.
  // All references outlive this object.
  PerturbedSlots(const Slots& slots, Engine& engine, const std::string& folder)
      : slots_(slots), engine_(engine), scratch_(folder) {}

  // `state`, with the float32 slots of `moved` moved along the direction. Valid until the next call, and as long as
  // `moved` and `state` are.
  Result<StateValues> make(const std::vector<size_t>& moved, const Direction& direction, const StateValues& state);

 private:
  const Slots& slots_;
  Engine& engine_;
  Scratch scratch_;
};

}  // namespace zoexport
