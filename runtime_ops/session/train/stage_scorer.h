// Scores calls: stage by stage, under one or more perturbations of the trainable slots, or under none.
#pragma once

#include <optional>
#include <vector>

#include "session/data/batching.h"
#include "session/manifest/step_plan.h"
#include "session/programs/head.h"
#include "session/programs/stages.h"
#include "session/train/perturbed_slots.h"

namespace zoexport {

// Number of a run among several runs over the same call.
struct Turn {
  uint32_t number = 0;
  uint32_t count = 1;
};

class StageScorer {
 public:
  // Scores the model as it is. `stages` outlives this object.
  explicit StageScorer(Stages& stages) : StageScorer(stages, std::nullopt) {}
  // Score perturbed copies, each a probe of the manifest's plan; with `kOne`, the copy along the scalars' query and
  // sign.
  StageScorer(Stages& stages, Copies copies) : StageScorer(stages, std::optional(copies)) {}

  CallLimits limits() const;
  // Copies of the model that one call scores.
  uint32_t copies() const;
  // Return whether programs apply gradients: the whole model's, or `update`, which runs before a call.
  bool updates() const { return stages_.manifest().whole() || stages_.has_update(); }
  // `next`: whether programs make the slots' next values, i.e. `state` with the scalars' gradients applied. Afterwards
  // logprobs() and is_argmax() are those of the call. The first of several turns computes the frozen layers for the
  // others; no other object may use the scratch between them.
  Status run(const Call& call, const CallScalars& scalars, Slots& slots, const StateValues& state, bool next,
             Turn turn = {});

  // A log-probability for each entry of the call.
  const float* logprobs(uint32_t copy) const { return logprobs_.data() + copy * entries_; }
  // 1 if an entry's label is the most likely token; filled without perturbation.
  const std::vector<float>& is_argmax() const { return is_argmax_; }

 private:
  StageScorer(Stages& stages, std::optional<Copies> perturbed)
      : stages_(stages),
        pass_(perturbed ? Pass::kForward : Pass::kEvaluate),
        head_(stages, pass_),
        perturbed_copies_(perturbed),
        perturbed_(stages) {}

  // Return whether programs perturb: one call has all copies, or the program gets the copy to compute.
  bool programs_perturb() const { return stages_.manifest().whole() || perturbed_copies_ == Copies::kCall; }
  // Return whether the copies of a call are stacked as rows of its input.
  bool stacked() const { return perturbed_copies_ == Copies::kCall && !stages_.manifest().whole(); }
  // Copies that a call's programs give. A whole model without a separate evaluate program gives identical copies.
  uint32_t given() const {
    const StageSpec& head = stages_.manifest().stages.back();
    const bool alike = !perturbed_copies_ && stages_.manifest().whole() && head.evaluate == head.forward;
    return alike ? stages_.manifest().copies : copies();
  }
  // The slots of a stage as a copy sees them, until the next call.
  Result<StateValues> perturbed(size_t stage, uint32_t copy, const CallScalars& scalars, const StateValues& state);

  Stages& stages_;
  Pass pass_;
  Head head_;
  std::optional<Copies> perturbed_copies_;  // none: the model as it is
  PerturbedSlots perturbed_;
  size_t entries_ = 0;
  std::vector<int64_t> repeated_;  // a call's tokens, for each of stacked copies
  std::vector<float> logprobs_;    // (copies, entries)
  std::vector<float> is_argmax_;
};

}  // namespace zoexport
