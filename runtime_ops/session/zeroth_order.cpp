// Zeroth-order training: prge (2q copies in a call) and mezo (one copy in a call, 2q calls).
#include <functional>
#include <numeric>
#include <string>

#include "session/loss.h"
#include "session/program_runner.h"
#include "session/slot_updates.h"
#include "session/split_scorer.h"
#include "session/trainer.h"

namespace zoexport {
namespace {

class ZerothOrderTrainer : public Trainer {
 public:
  ZerothOrderTrainer(std::unique_ptr<CallRunner> train, const SlotUpdates& updates, uint32_t queries)
      : train_(std::move(train)), updates_(updates), queries_(queries) {}

  uint32_t queries() const override { return queries_; }

  CallLimits limits() const override { return train_->limits(); }

  bool takes_forward_differences() const override { return train_->copies() == 1; }

  Result<StepOutput> step(const StepInput& input, const Layout& layout, Slots& slots) override {
    // Forward: copy 0 is unperturbed, copy i + 1 is B + eps z_i.
    const bool forward = input.run.difference == ZO_DIFFERENCE_FORWARD;
    const uint32_t evaluated = forward ? queries_ + 1 : 2 * queries_;
    std::vector<CandidateScores> scores(evaluated, CandidateScores(layout));
    CallScalars scalars;
    scalars.seed = input.run.seed;
    scalars.step = input.step;
    const auto eps = static_cast<float>(input.run.eps);
    if (input.pending != nullptr) {
      scalars.gradients = &input.pending->gradients;
      scalars.learning_rate = input.pending->lr;
    }
    const uint32_t copies = train_->copies();
    bool first = true;
    for (const Call& call : layout.calls) {
      for (uint32_t copy = 0; copy < evaluated; copy += copies) {
        scalars.query = !forward ? copy / 2 : copy == 0 ? 0 : copy - 1;
        scalars.sign = forward || copy % 2 == 0 ? 1.0f : -1.0f;
        scalars.epsilon = forward && copy == 0 ? 0.0f : eps;
        // The first call applies the pending update; the others start from its result.
        const auto state = [&](size_t slot) -> const void* {
          return first || !slots.trainable(slot) ? slots.current(slot) : slots.next(slot);
        };
        ZO_TRY(train_->run(call, scalars, slots, state, first));
        first = false;
        scalars.gradients = nullptr;
        for (uint32_t i = 0; i < copies; ++i) {
          scores[copy + i].add(call, train_->logprobs(i));
        }
      }
    }
    return reduce(scores, input);
  }

  Status apply(const Record& record, uint64_t seed, const SlotSpec& slot, const void* in, void* out) override {
    const SlotUpdate update{record.gradients.data(), record.gradients.size(), record.lr, seed, record.step + 1};
    if (!updates_.apply(slot, update, in, out)) {
      return Failure{ZO_STATE_ERROR, "record " + std::to_string(record.step), "no gradients", "one for each query",
                     "Restore the state from a copy, or start again in another folder."};
    }
    return {};
  }

  double promised(const Record& record) const override {
    return promised_decrease(record.lr, record.gradients.data(), record.gradients.size());
  }

  const float* gradient(size_t) const override { return nullptr; }

 private:
  StepOutput reduce(const std::vector<CandidateScores>& scores, const StepInput& input) const {
    StepOutput output;
    for (const CandidateScores& copy : scores) {
      output.losses.push_back(copy.mean_loss(input.run.loss));
    }
    // The programs perturb by the float32 value.
    const double eps = static_cast<float>(input.run.eps);
    const bool forward = input.run.difference == ZO_DIFFERENCE_FORWARD;
    for (size_t i = 0; i < queries_; ++i) {
      const double slope = forward ? (output.losses[i + 1] - output.losses[0]) / eps
                                   : (output.losses[2 * i] - output.losses[2 * i + 1]) / (2.0 * eps);
      output.gradients.push_back(static_cast<float>(slope));
    }
    output.loss = std::accumulate(output.losses.begin(), output.losses.end(), 0.0) /
                  static_cast<double>(output.losses.size());
    return output;
  }

  std::unique_ptr<CallRunner> train_;
  SlotUpdates updates_;
  uint32_t queries_;
};

Failure unusable(const std::string& found, const std::string& expected) {
  return {ZO_BUNDLE_ERROR, "manifest.json, program train", found, expected, "Compile the bundle again."};
}

}  // namespace

double promised_decrease(float lr, const float* gradients, size_t count) {
  const double squares = std::inner_product(gradients, gradients + count, gradients, 0.0, std::plus<>(),
                                            [](double a, double b) { return a * b; });
  return lr * squares / static_cast<double>(count);
}

Result<std::unique_ptr<Trainer>> make_trainer(const Manifest& manifest, Programs& programs, FrozenWeights& weights) {
  ZO_ASSIGN(train, ProgramRunner::create(manifest, "train", programs, weights));
  const ProgramSpec& program = train.spec();
  // The program makes the noise itself, or takes that of two steps.
  const bool takes_noise = program.input("noise") != nullptr;
  for (const char* role : {takes_noise ? "noise" : "seed", takes_noise ? "previous_noise" : "step",
                           "projected_gradients", "learning_rate", "epsilon"}) {
    if (program.input(role) == nullptr) {
      return unusable("no input with the role " + std::string(role), "the inputs of a zeroth-order method");
    }
  }
  const auto queries = static_cast<uint32_t>(program.input("projected_gradients")->shape[0].max);
  const bool sequential = program.input("sign") != nullptr;
  if (sequential && !takes_noise && program.input("query") == nullptr) {
    return unusable("the role sign without the role query", "both");
  }
  const uint32_t copies = sequential ? 1 : 2 * queries;
  if (manifest.copies != copies || train.copies() != copies) {
    return unusable(std::to_string(train.copies()) + " copies", std::to_string(copies));
  }
  for (const SlotSpec& slot : manifest.slots) {
    const auto names = [&](const std::vector<ValueSpec>& values) {
      for (const ValueSpec& value : values) {
        if (value.role == "state" && value.name == slot.name) {
          return true;
        }
      }
      return false;
    };
    if (slot.role == "trainable" && !(names(program.inputs) && names(program.outputs))) {
      return unusable("no input or no output for the trainable slot " + slot.name, "both");
    }
    if (slot.role != "trainable" && names(program.outputs)) {
      return unusable("an output for the " + slot.role + " slot " + slot.name, "outputs for trainable slots only");
    }
  }
  return std::unique_ptr<Trainer>(
      std::make_unique<ZerothOrderTrainer>(std::make_unique<ProgramRunner>(std::move(train)), SlotUpdates(), queries));
}

Result<std::unique_ptr<Trainer>> make_split_zeroth_order(const Manifest& manifest, Stages& stages, Programs& programs) {
  const bool stacked = manifest.copies > 1;
  const bool together = manifest.method == "prge";
  if (!stacked && !together && manifest.method != "mezo") {
    return Failure{ZO_BUNDLE_ERROR, "manifest.json, method", manifest.method + ", with stages and without an optimizer",
                   "prge or mezo, or programs that perturb copies", "Use the zoexport version that compiled this bundle."};
  }
  if (manifest.queries == 0) {
    return Failure{ZO_BUNDLE_ERROR, "manifest.json, settings.queries", "nothing", "a number of at least 1",
                   "Compile the bundle again."};
  }
  const SlotUpdates updates(manifest, stages.slots(), programs.engine());
  ZO_ASSIGN(update, UpdateRunner::create(manifest, programs, updates));
  const auto copies = stacked    ? SplitScorer::Copies::kStacked
                      : together ? SplitScorer::Copies::kAll
                                 : SplitScorer::Copies::kOne;
  auto scorer = std::make_unique<SplitScorer>(stages, copies, std::move(update));
  return std::unique_ptr<Trainer>(std::make_unique<ZerothOrderTrainer>(std::move(scorer), updates, manifest.queries));
}

}  // namespace zoexport
