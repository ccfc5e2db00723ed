// First-order training (MeBP, section 3): gradients stage by stage, and AdamW or SGD.
#include <algorithm>
#include <cmath>
#include <optional>

#include "session/data/loss.h"
#include "session/state/slot_values.h"
#include "session/train/optimizer.h"
#include "session/train/stage_gradient.h"
#include "session/train/stage_scorer.h"
#include "session/train/trainer.h"

namespace zoexport {
namespace {

class FirstOrderTrainer : public Trainer {
 public:
  FirstOrderTrainer(Stages& stages, Optimizer optimizer)
      : stages_(stages), optimizer_(optimizer), sums_(stages), scorer_(stages) {}

  Status prepare() {
    ZO_ASSIGN(gradient, StageGradient::create(stages_, sums_));
    gradient_.emplace(std::move(gradient));
    return {};
  }

  uint32_t queries() const override { return 0; }

  double promised(const Record&) const override { return 0; }

  // The values are looked at as they are computed.
  std::string out_of_range(const Record&, uint64_t, Slots*) override { return ""; }

  CallLimits limits() const override { return stages_.limits(Pass::kForward); }

  Result<StepOutput> step(const StepInput& input, const Layout& layout, Slots& slots) override {
    complete_ = false;
    not_finite_.clear();
    ZO_TRY(sums_.begin());
    const StateValues state = [&](size_t slot) { return slots.current(slot); };
    const Objective objective = input.run.objective();
    const bool compared = compares(objective.loss);
    CallScalars scalars;
    scalars.seed = input.run.seed();
    scalars.step = input.step;
    scalars.drops = true;
    CandidateScores scores(layout);
    StepOutput output;
    const auto reduce = [&] {
      output.loss = scores.mean_loss(objective);
      output.losses = {output.loss};
      return std::isfinite(static_cast<float>(output.loss));  // as the record has it
    };
    if (compared) {
      // An entry's weight depends on the scores of all of its example's candidates.
      for (const Call& call : layout.calls) {
        ZO_TRY(scorer_.run(call, scalars, slots, state, /*next=*/false));
        scores.add(call, scorer_.logprobs(0));
      }
      if (!reduce()) {
        return output;
      }
    }
    const std::vector<double> weights = scores.weights(objective);
    UpdateSettings settings;
    settings.learning_rate = input.learning_rate;
    settings.momentum = input.run.number("momentum");
    settings.weight_decay = input.run.number("weight_decay");
    settings.update = uint64_t{input.step} + 1;
    const double clip = input.run.number("max_grad_norm");
    const bool clips = clip > 0;
    for (const Call& call : layout.calls) {
      const bool last = &call == &layout.calls.back();
      std::vector<float> entry_weights;
      entry_weights.reserve(call.owners.size());
      for (uint32_t owner : call.owners) {
        entry_weights.push_back(static_cast<float>(weights[owner]));
      }
      std::vector<float> logprobs(call.owners.size());
      bool finite = true;
      const auto scored = [&]() -> Status {
        if (!compared) {
          scores.add(call, logprobs.data());
          finite = !last || reduce();
        }
        return finite ? Status() : Failure{ZO_DIVERGED, "loss", "not finite", "a finite loss", "Lower learning_rate."};
      };
      const auto finished = [&](size_t slot) {
        if (last && !clips) {
          update(settings, slot, slots);
        }
      };
      const Kept kept{input.run.count("checkpoint_every"), in_bytes(input.run.count("activation_cache_mb"))};
      const Status done =
          gradient_->run(call, scalars, entry_weights.data(), kept, state, logprobs.data(), scored, finished);
      if (!finite) {
        return output;
      }
      ZO_TRY(done);
    }
    if (clips) {
      settings.scale = scale(clip, slots);
      for (size_t slot = 0; slot < slots.size(); ++slot) {
        if (slots.trainable(slot)) {
          update(settings, slot, slots);
        }
      }
    }
    output.not_finite = not_finite_;
    complete_ = not_finite_.empty();
    return output;
  }

  Status apply(const History& history, uint64_t, const SlotSpec&, const void*, void*) override {
    return Failure{ZO_INVALID_ARGUMENT, "record " + std::to_string(history.last().step),
                   "a step of a first-order method", "one that can be repeated from its record",
                   "Read a snapshot of the state instead."};
  }

  const float* gradient(size_t slot) const override { return complete_ ? sums_.sum(slot) : nullptr; }

 private:
  void update(const UpdateSettings& settings, size_t slot, Slots& slots) {
    if (!not_finite_.empty()) {
      return;  // the step is given up
    }
    // From here on the next values are no longer those of an earlier step.
    slots.copies().set_next_steps(WorkFile::kNoSteps);
    const auto* value = static_cast<const float*>(slots.current(slot));
    auto* next = static_cast<float*>(slots.next(slot));
    UpdateArrays arrays{slots.spec(slot).elements, sums_.sum(slot), value, {}, next, {}};
    for (uint32_t m = 0; m < slots.moments(); ++m) {
      arrays.moments[m] = slots.moment(m, slot);
      arrays.next_moments[m] = slots.next_moment(m, slot);
    }
    if (optimizer_ == Optimizer::kAdamW) {
      adamw(settings, arrays);
    } else {
      sgd(settings, arrays);
    }
    // What is not finite in a gradient reaches a moment.
    const SlotSpec& spec = slots.spec(slot);
    bool finite = all_finite(spec, next);
    for (uint32_t m = 0; m < slots.moments(); ++m) {
      finite = finite && all_finite(spec, arrays.next_moments[m]);
    }
    if (!finite) {
      not_finite_ =
          (all_finite(spec, arrays.gradient) ? "an update of " : "a gradient by ") + spec.name + " that is not finite";
    }
  }

  // Return the factor of gradient clipping, like torch.nn.utils.clip_grad_norm_.
  float scale(double clip, const Slots& slots) const {
    double squares = 0;
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      const float* sum = sums_.sum(slot);
      const uint64_t elements = slots.trainable(slot) ? slots.spec(slot).elements : 0;
      for (uint64_t i = 0; i < elements; ++i) {
        squares += double{sum[i]} * sum[i];
      }
    }
    return static_cast<float>(std::min(1.0, clip / (std::sqrt(squares) + 1e-6)));
  }

  Stages& stages_;
  Optimizer optimizer_;
  GradientSums sums_;
  StageScorer scorer_;
  std::optional<StageGradient> gradient_;
  std::string not_finite_;  // what of the step that runs; empty: nothing
  bool complete_ = false;   // whether the sums are the last step's gradients
};

}  // namespace

Result<std::unique_ptr<Trainer>> make_first_order(Stages& stages) {
  const Manifest& manifest = stages.manifest();
  if (manifest.optimizer.empty()) {
    return Failure{ZO_BUNDLE_ERROR, "manifest.json, settings.optimizer", "nothing", "adamw or sgd",
                   "Compile the bundle again."};
  }
  auto trainer = std::make_unique<FirstOrderTrainer>(stages, optimizer_from_text(manifest.optimizer));
  ZO_TRY(trainer->prepare());
  return std::unique_ptr<Trainer>(std::move(trainer));
}

}  // namespace zoexport
