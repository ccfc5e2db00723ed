// Evaluates the probes of a step plan.
#pragma once

#include <memory>
#include <vector>

#include "session/data/loss.h"
#include "session/train/stage_scorer.h"
#include "session/train/trainer.h"

namespace zoexport {

class Prober {
 public:
  virtual ~Prober() = default;
  // The size of its calls.
  virtual CallLimits limits() const = 0;
  // Return whether programs apply the update: then a step's first call makes the slots' next values with the pending
  // update applied. Otherwise they are made before that call.
  virtual bool updates() const = 0;
  // Scores a call under every probe of `plan`; scores[p] is that of its loss number p. `first`: whether it is the first
  // call of the step.
  virtual Status run(const Call& call, const StepInput& input, const StepPlan& plan, bool first, Slots& slots,
                     std::vector<CandidateScores>& scores) = 0;
};

// Return the prober of one level; `scorer` computes its copies, as many at once as it has.
std::unique_ptr<Prober> make_flat_prober(std::unique_ptr<StageScorer> scorer);

// Return the prober of several levels, each over the stages of its group, one copy at a time.
std::unique_ptr<Prober> make_nested_prober(Stages& stages);

}  // namespace zoexport
