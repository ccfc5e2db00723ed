// Applies the gradients of a zeroth-order step to slots, by the kernel of their dtype.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "engines/engine.h"
#include "kernels/zeroth_order.h"
#include "session/state/slots.h"

namespace zoexport {

// The gradients of a step, one for each query, and the rate that they are applied with.
struct SlotUpdate {
  const float* gradients;
  size_t queries;
  float learning_rate;
  uint64_t seed;
  uint32_t step;  // the one after theirs
};

// Run `body` on ranges that partition 0 .. count-1 of a slot's values and begin at whole blocks of random words, on the
// engine's threads if there are enough values.
void parallel_pieces(Engine& engine, size_t count, const std::function<void(size_t begin, size_t end)>& body);

class SlotUpdates {
 public:
  // For trainable slots that may be integers, or as long as a model: `slots` has the table of roundings, and `engine`
  // the threads. All outlive this object.
  SlotUpdates(const Manifest& manifest, const Slots& slots, Engine& engine)
      : grid_(manifest.grid ? &*manifest.grid : nullptr),
        blocks_(rng::blocks_of(manifest.step.noise)),
        slots_(&slots),
        engine_(&engine) {}

  // out = in with the update applied; `out` may be `in`. A copy where every gradient is zero. False, with nothing
  // written, without gradients or where some are of a step before the first.
  bool apply(const SlotSpec& slot, const SlotUpdate& update, const void* in, void* out) const;
  // Apply the update to a float32 slot, using moments of several steps' gradients.
  bool apply(const SlotSpec& slot, const kernels::Moments& moments, const void* in, void* out) const;
  // Apply the update to a matrix slot, using the orthogonal factor of its first moment.
  bool apply_orthogonal(const SlotSpec& slot, kernels::Moments moments, float learning_rate, const void* in,
                        void* out) const;

 private:
  bool apply_integers(const SlotSpec& slot, const SlotUpdate& update, const uint8_t* in, uint8_t* out) const;
  void in_pieces(size_t count, const std::function<void(size_t begin, size_t end)>& body) const;

  const GridSpec* grid_;
  rng::NoiseBlocks blocks_;
  const Slots* slots_;
  Engine* engine_;
};

}  // namespace zoexport
