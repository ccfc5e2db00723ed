// Scores calls of a split model: stage by stage, under one or more perturbations of its trainable slots, or under none.
#pragma once

#include <optional>
#include <vector>

#include "session/manifest/step_plan.h"
#include "session/programs/split_head.h"
#include "session/programs/stages.h"
#include "session/train/perturbed_slots.h"
#include "session/train/update_runner.h"

namespace zoexport {

class SplitScorer : public CallRunner {
 public:
  // Scores the model as it is. `stages` outlives this object.
  explicit SplitScorer(Stages& stages) : SplitScorer(stages, std::nullopt, std::nullopt) {}
  // Scores perturbed copies, of which number 2i goes along +z_i and number 2i+1 along -z_i; of `kOne`, the one along the
  // scalars' query and sign. `update` runs before a call that is the next step's first.
  SplitScorer(Stages& stages, Copies copies, UpdateRunner update)
      : SplitScorer(stages, std::optional(copies), std::optional(std::move(update))) {}

  CallLimits limits() const override;
  uint32_t copies() const override;
  Status run(const Call& call, const CallScalars& scalars, Slots& slots, const StateValues& state, bool next) override;
  const float* logprobs(uint32_t copy) const override { return logprobs_.data() + copy * entries_; }
  const std::vector<float>& is_argmax() const override { return is_argmax_; }

 private:
  SplitScorer(Stages& stages, std::optional<Copies> perturbed, std::optional<UpdateRunner> update)
      : stages_(stages),
        head_(stages),
        perturbed_copies_(perturbed),
        update_(std::move(update)),
        perturbed_(stages.slots(), stages.engine(), stages.folder()) {}

  // Whether one call of programs that perturb has all copies, as rows.
  bool stacked() const { return perturbed_copies_ == Copies::kCall; }
  // The slots of a stage as a copy sees them, until the next call.
  Result<StateValues> perturbed(size_t stage, uint32_t copy, const CallScalars& scalars, const StateValues& state);

  Stages& stages_;
  SplitHead head_;
  std::optional<Copies> perturbed_copies_;  // none: the model as it is
  std::optional<UpdateRunner> update_;      // where copies are perturbed
  PerturbedSlots perturbed_;
  size_t entries_ = 0;
  std::vector<float> logprobs_;  // (copies, entries)
  std::vector<float> is_argmax_;
};

}  // namespace zoexport
