// Scores calls of a split model: stage by stage, under one or more perturbations of its trainable slots, or under none.
#pragma once

#include <optional>
#include <vector>

#include "session/perturbed_slots.h"
#include "session/split_head.h"
#include "session/stages.h"
#include "session/update_runner.h"

namespace zoexport {

class SplitScorer : public CallRunner {
 public:
  enum class Copies {
    kPlain,   // one, as it is
    kOne,     // one, perturbed along the scalars' query and sign
    kAll,     // 2 * queries: copy 2i along +z_i, copy 2i+1 along -z_i; all go through a stage before the next
    kStacked  // likewise, as rows of one call of programs that perturb
  };

  // Of Copies::kPlain. `stages` outlives this object.
  explicit SplitScorer(Stages& stages) : SplitScorer(stages, Copies::kPlain, std::nullopt) {}
  SplitScorer(Stages& stages, Copies copies, std::optional<UpdateRunner> update)
      : stages_(stages),
        head_(stages),
        mode_(copies),
        update_(std::move(update)),
        perturbed_(stages.slots(), stages.engine(), stages.folder()) {}

  CallLimits limits() const override;
  uint32_t copies() const override;
  Status run(const Call& call, const CallScalars& scalars, Slots& slots, const StateValues& state, bool next) override;
  const float* logprobs(uint32_t copy) const override { return logprobs_.data() + copy * entries_; }
  const std::vector<float>& is_argmax() const override { return is_argmax_; }

 private:
  // The slots of a stage as a copy sees them, until the next call.
  Result<StateValues> perturbed(size_t stage, uint32_t copy, const CallScalars& scalars, const StateValues& state);

  Stages& stages_;
  SplitHead head_;
  Copies mode_;
  std::optional<UpdateRunner> update_;  // of all but kPlain
  PerturbedSlots perturbed_;
  size_t entries_ = 0;
  std::vector<float> logprobs_;  // (copies, entries)
  std::vector<float> is_argmax_;
};

}  // namespace zoexport
