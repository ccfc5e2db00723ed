// The gradient of a call's loss through stages: forward with checkpoints, the head, then backward stage by stage. The last
// stages may save their products' results on the way forward, as far as there is room, and compute none of them again.
#pragma once

#include <functional>
#include <vector>

#include "session/programs/head.h"
#include "session/train/gradient_sums.h"

namespace zoexport {

// Data that the forward pass keeps for the backward pass.
struct Kept {
  uint32_t every = 1;  // stages from one kept activation to the next
  uint64_t bytes = 0;  // most that stages take which save results, with their activations
};

class StageGradient {
 public:
  // All references outlive this object. A failure names a stage that must have a backward program and has none.
  static Result<StageGradient> create(Stages& stages, GradientSums& sums);

  // Runs a call and adds the gradients of its trainable slots to the sums. `weights` are the loss's derivatives by each
  // entry's log-probability; what is not kept is computed again, to the same bits.
  // `scored` is called when `logprobs` (one for each entry) is filled and no stage has run backward: a failure of it ends
  // the call. `finished` gets each slot whose gradient of this call is complete. Adapters leave out what the scalars say.
  Status run(const Call& call, const CallScalars& scalars, const float* weights, const Kept& kept,
             const StateValues& state, float* logprobs, const std::function<Status()>& scored,
             const std::function<void(size_t slot)>& finished);

 private:
  struct Plan;
  // Return the first of the last stages whose saved results fit in `bytes`; the head if none fits.
  size_t first_saving(uint32_t length, uint64_t bytes) const;
  StageGradient(Stages& stages, GradientSums& sums) : stages_(stages), sums_(sums), head_(stages, Pass::kForward) {}
  Status forward(const Plan& plan, size_t stage, const Call& call, const CallScalars& scalars,
                 const StateValues& state);
  // Return the inputs that all programs of a call share.
  static StageValues values_of(const Call& call, const CallScalars& scalars, const StateValues& state);
  void finish(size_t stage, const std::function<void(size_t)>& finished) const;

  Stages& stages_;
  GradientSums& sums_;
  Head head_;
  size_t lowest_ = 0;                      // the first stage that is run backward
  std::vector<std::vector<size_t>> last_;  // by stage: slots that no stage below it reads
};

}  // namespace zoexport
