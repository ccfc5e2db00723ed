// Zeroth-order training: a step evaluates the probes of its plan, and takes slopes of the loss along their directions.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "session/decimal.h"
#include "session/state/slot_values.h"
#include "session/train/moments.h"
#include "session/train/prober.h"
#include "session/train/slot_updates.h"
#include "session/train/stage_scorer.h"

namespace zoexport {
namespace {

// No normal of the noise specification is larger: sqrt(-2 ln 2^-24).
constexpr double kLargestNormal = 5.77;
constexpr double kLargestSign = 1;
// However many steps move a float32 value by less than this, it stays finite: beyond it they fall below its last bit.
constexpr double kLargestMove = 1e29;
constexpr double kLargestHalf = 65504;
// Squares of gradients below this are float32 numbers.
constexpr double kLargestSquared = 1e18;

class ZerothOrderTrainer : public Trainer {
 public:
  // The references outlive it.
  ZerothOrderTrainer(const Manifest& manifest, std::unique_ptr<Prober> prober, const SlotUpdates& updates)
      : manifest_(manifest), plan_(manifest.step), prober_(std::move(prober)), updates_(updates) {}

  uint32_t queries() const override { return plan_.scalars(); }

  CallLimits limits() const override { return prober_->limits(); }

  bool takes(const std::string& difference) const override {
    // A choice where one copy goes through the model at a time; other copies are compiled in, and so are nested levels.
    const bool choice = plan_.levels.size() == 1 && plan_.copies == Copies::kOne;
    return choice || difference == manifest_.settings.text("difference");
  }

  Result<StepOutput> step(const StepInput& input, const Layout& layout, Slots& slots) override {
    if (plan_.levels.size() == 1) {
      plan_.levels[0].forward = input.run.text("difference") == "forward";
    }
    if (!prober_->updates()) {
      ZO_TRY(update(input, slots));
    }
    std::vector<CandidateScores> scores(plan_.evaluations(), CandidateScores(layout));
    bool first = true;
    for (const Call& call : layout.calls) {
      ZO_TRY(prober_->run(call, input, plan_, first, slots, scores));
      first = false;
    }
    StepOutput output;
    const Objective objective = input.run.objective();
    for (const CandidateScores& probe : scores) {
      output.losses.push_back(probe.mean_loss(objective));
    }
    // The programs perturb by the float32 value.
    output.gradients = plan_.slopes(output.losses, static_cast<float>(input.run.number("eps")));
    output.loss =
        std::accumulate(output.losses.begin(), output.losses.end(), 0.0) / static_cast<double>(output.losses.size());
    return output;
  }

  Status apply(const History& history, uint64_t seed, const SlotSpec& slot, const void* in, void* out) override {
    const Record& record = history.last();
    if (record.gradients.size() != plan_.scalars() || !applied(history, seed, slot, in, out)) {
      return Failure{ZO_STATE_ERROR, "record " + std::to_string(record.step),
                     std::to_string(record.gradients.size()) + " gradients", std::to_string(plan_.scalars()),
                     "Restore the state from a copy, or start again in another folder."};
    }
    return {};
  }

  double promised(const Record& record) const override {
    if (plan_.divisor == Divisor::kDeviation || plan_.update.kind == UpdateKind::kAdam ||
        plan_.update.kind == UpdateKind::kMuon) {
      return 0;  // the update has no unit, and the rate alone determines the size of a step
    }
    double total = 0;
    for (size_t level = 0; level < plan_.levels.size(); ++level) {
      total += promised_decrease(record.learning_rate, record.gradients.data() + plan_.first_scalar(level),
                                 plan_.directions(level));
    }
    return total;
  }

  std::string out_of_range(const Record& record, uint64_t seed, Slots* slots) override {
    for (size_t i = 0; i < manifest_.slots.size(); ++i) {
      const SlotSpec& slot = manifest_.slots[i];
      if (slot.role != "trainable") {
        continue;
      }
      const size_t level = manifest_.level_of(slot.name);
      const float* gradients = record.gradients.data() + plan_.first_scalar(level);
      const size_t count = plan_.directions(level);
      const double sum = std::accumulate(gradients, gradients + count, 0.0,
                                         [](double total, float gradient) { return total + std::fabs(gradient); });
      if (!std::isfinite(sum)) {
        return "a projected gradient that is not finite";
      }
      const double rate = double{record.learning_rate} / static_cast<double>(count);
      const double largest = (plan_.noise == rng::Noise::kNormal ? kLargestNormal : kLargestSign) * sum;
      if (plan_.update.kind != UpdateKind::kSgd) {
        // An average is at most the largest of its gradients, and each gradient was in range when it was the newest; no
        // root in a divisor is smaller than the epsilon that is added to it; and an orthogonal factor is below 2.
        const double divisor = plan_.update.kind == UpdateKind::kAdam ? double{kernels::kMomentEpsilon} : 1.0;
        if (!(largest < kLargestSquared && record.learning_rate * (kLargestSquared / divisor) < kLargestMove)) {
          return "a gradient of up to " + decimal(largest) + " by " + slot.name + ", at the rate " +
                 decimal(record.learning_rate);
        }
        continue;
      }
      const bool half = slot.dtype == ZO_FLOAT16;
      const double from = half && slots != nullptr ? largest_half(slot, slots->next(i)) : 0;
      const bool far = !(largest * std::max(1.0, rate) < kLargestMove);
      if (!far && !(half && from + largest * rate >= kLargestHalf)) {
        continue;
      }
      // Only the update itself tells whether the largest values are those that move furthest.
      std::vector<uint8_t> moved(far || slots == nullptr ? 0 : slot.bytes());
      if (moved.empty() || !apply({&record, 1}, seed, slot, slots->next(i), moved.data()).ok() ||
          !all_finite(slot, moved.data())) {
        return "an update that could move values of " + slot.name + " by " + decimal(largest * rate);
      }
    }
    return "";
  }

  const float* gradient(size_t) const override { return nullptr; }

 private:
  // Apply the plan's rule; false, with nothing written, if a gradient is of a step before the first.
  bool applied(const History& history, uint64_t seed, const SlotSpec& slot, const void* in, void* out) const {
    const Record& record = history.last();
    const size_t level = manifest_.level_of(slot.name);
    const size_t first = plan_.first_scalar(level);
    const uint32_t queries = plan_.directions(level);
    if (plan_.update.kind == UpdateKind::kSgd) {
      return updates_.apply(
          slot, {record.gradients.data() + first, queries, record.learning_rate, seed, record.step + 1}, in, out);
    }
    const std::vector<kernels::MomentStep> steps = moment_steps(plan_.update, history, first, queries);
    const kernels::Moments moments = moments_of(plan_.update, steps, record.learning_rate, queries, seed);
    return plan_.update.kind == UpdateKind::kMuon
               ? updates_.apply_orthogonal(slot, moments, record.learning_rate, in, out)
               : updates_.apply(slot, moments, in, out);
  }

  // Makes the slots' next values, with the pending update or without one.
  Status update(const StepInput& input, Slots& slots) {
    const Record none{0, 0, 0, 0, std::vector<float>(plan_.scalars(), 0.0f)};
    const History history = input.pending.empty() ? History{&none, 1} : input.pending;
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      if (slots.trainable(slot)) {
        ZO_TRY(apply(history, input.run.seed(), slots.spec(slot), slots.current(slot), slots.next(slot)));
      }
    }
    return {};
  }

  const Manifest& manifest_;
  StepPlan plan_;
  std::unique_ptr<Prober> prober_;
  SlotUpdates updates_;
};

}  // namespace

double promised_decrease(float learning_rate, const float* gradients, size_t count) {
  const double squares = std::inner_product(gradients, gradients + count, gradients, 0.0, std::plus<>(),
                                            [](double a, double b) { return a * b; });
  return learning_rate * squares / static_cast<double>(count);
}

std::unique_ptr<Trainer> make_zeroth_order(Stages& stages) {
  const Manifest& manifest = stages.manifest();
  const SlotUpdates updates(manifest, stages.slots(), stages.engine());
  if (manifest.step.levels.size() > 1) {
    return std::make_unique<ZerothOrderTrainer>(manifest, make_nested_prober(stages), updates);
  }
  auto prober = make_flat_prober(std::make_unique<StageScorer>(stages, manifest.step.copies));
  return std::make_unique<ZerothOrderTrainer>(manifest, std::move(prober), updates);
}

}  // namespace zoexport
