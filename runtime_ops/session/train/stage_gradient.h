// The gradient of a call's loss through stages: forward with checkpoints, the head, then backward stage by stage.
#pragma once

#include <functional>
#include <vector>

#include "session/programs/head.h"
#include "session/train/gradient_sums.h"

namespace zoexport {

class StageGradient {
 public:
  // All references outlive this object. A failure names a stage that must have a backward program and has none.
  static Result<StageGradient> create(Stages& stages, GradientSums& sums);

  // Runs a call and adds the gradients of its trainable slots to the sums. `weights` are the loss's derivatives by each
  // entry's log-probability; the activations that every `every`-th stage takes are kept, those between are computed again.
  // `scored` is called when `logprobs` (one for each entry) is filled and no stage has run backward: a failure of it ends
  // the call. `finished` gets each slot whose gradient of this call is complete. Adapters leave out what the scalars say.
  Status run(const Call& call, const CallScalars& scalars, const float* weights, uint32_t every,
             const StateValues& state, float* logprobs, const std::function<Status()>& scored,
             const std::function<void(size_t slot)>& finished);

 private:
  struct Plan;
  StageGradient(Stages& stages, GradientSums& sums) : stages_(stages), sums_(sums), head_(stages, Pass::kForward) {}
  Status forward(size_t stage, const Call& call, const CallScalars& scalars, const StateValues& state,
                 const uint8_t* in, uint8_t* out);
  void finish(size_t stage, const std::function<void(size_t)>& finished) const;

  Stages& stages_;
  GradientSums& sums_;
  Head head_;
  size_t lowest_ = 0;                      // the first stage that is run backward
  std::vector<std::vector<size_t>> last_;  // by stage: slots that no stage below it reads
};

}  // namespace zoexport
