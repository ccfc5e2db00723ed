// Slots as a perturbed copy of the model sees them.
#pragma once

#include <vector>

#include "engines/engine.h"
#include "session/programs/stages.h"
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
  // The slots of `stages`, which outlives this object, along the noise of its plan. The values are made in a file without a
  // name in its folder (see Scratch), as trained slots may be as long as a model.
  explicit PerturbedSlots(Stages& stages)
      : slots_(stages.slots()),
        engine_(stages.engine()),
        blocks_(rng::blocks_of(stages.manifest().step.noise)),
        scratch_(stages.folder()) {}

  // `state`, with the float32 slots of `moved` moved along the direction. Valid until the next call, and as long as
  // `moved` and `state` are.
  Result<StateValues> make(const std::vector<size_t>& moved, const Direction& direction, const StateValues& state);

 private:
  const Slots& slots_;
  Engine& engine_;
  rng::NoiseBlocks blocks_;
  Scratch scratch_;
};

}  // namespace zoexport
