// The probes of one level: perturbed copies of the whole model, in calls that hold one of them or all.
#include "session/train/prober.h"

namespace zoexport {
namespace {

class FlatProber : public Prober {
 public:
  explicit FlatProber(std::unique_ptr<StageScorer> scorer) : scorer_(std::move(scorer)) {}

  CallLimits limits() const override { return scorer_->limits(); }
  bool updates() const override { return scorer_->updates(); }

  Status run(const Call& call, const StepInput& input, const StepPlan& plan, bool first, Slots& slots,
             std::vector<CandidateScores>& scores) override {
    CallScalars scalars;
    scalars.seed = input.run.seed();
    scalars.step = input.step;
    first = first && updates();
    if (first && !input.pending.empty()) {
      scalars.gradients = &input.pending.last().gradients;
      scalars.learning_rate = input.pending.last().learning_rate;
    }
    const uint32_t copies = scorer_->copies();
    for (uint32_t probe = 0; probe < plan.evaluations(); probe += copies) {
      const ProbeMove move = plan.move(0, 0, probe);
      scalars.query = move.query;
      scalars.sign = move.side < 0 ? -1.0f : 1.0f;
      scalars.epsilon = copies == 1 && move.side == 0 ? 0.0f : static_cast<float>(input.run.number("eps"));
      // The first call may apply the pending update; the others start from its result.
      const auto state = [&](size_t slot) -> const void* {
        return first || !slots.trainable(slot) ? slots.current(slot) : slots.next(slot);
      };
      const Turn turn{probe / copies, plan.evaluations() / copies};
      ZO_TRY(scorer_->run(call, scalars, slots, state, first, turn));
      first = false;
      scalars.gradients = nullptr;
      for (uint32_t i = 0; i < copies; ++i) {
        scores[probe + i].add(call, scorer_->logprobs(i));
      }
    }
    return {};
  }

 private:
  std::unique_ptr<StageScorer> scorer_;
};

}  // namespace

std::unique_ptr<Prober> make_flat_prober(std::unique_ptr<StageScorer> scorer) {
  return std::make_unique<FlatProber>(std::move(scorer));
}

}  // namespace zoexport
