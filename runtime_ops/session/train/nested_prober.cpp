// The probes of several levels: for each probe of one group of stages, what it gives is kept, and the next group goes
// through its own probes over that. So the stages of a group run as often as its probes ask for, and no more (FedSPZO,
// equation 9).
#include <algorithm>

#include "session/programs/head.h"
#include "session/train/perturbed_slots.h"
#include "session/train/prober.h"

namespace zoexport {
namespace {

class NestedProber : public Prober {
 public:
  explicit NestedProber(Stages& stages) : stages_(stages), head_(stages, Pass::kForward), perturbed_(stages) {
    const Manifest& manifest = stages.manifest();
    for (size_t stage = 0; stage < stages.count(); ++stage) {
      moved_.emplace_back();
      for (const size_t slot : stages.trainable(stage)) {
        // A slot that several groups read is perturbed only in the last of them.
        if (manifest.level_of(stages.slots().spec(slot).name) == manifest.step.level_of(stage)) {
          moved_.back().push_back(slot);
        }
      }
    }
  }

  CallLimits limits() const override { return stages_.limits(Pass::kForward); }
  bool updates() const override { return false; }

  Status run(const Call& call, const StepInput& input, const StepPlan& plan, bool, Slots& slots,
             std::vector<CandidateScores>& scores) override {
    const StateValues master = [&](size_t slot) -> const void* {
      return slots.trainable(slot) ? slots.next(slot) : slots.current(slot);
    };
    // Two regions pass from stage to stage, one is what the last stage of each group gives, and one what frozen layers do.
    FrozenPrefix& prefix = stages_.prefix();
    const size_t region = stages_.activation_bytes(call.length);
    const size_t total = (2 + plan.levels.size() + (prefix.end() > 0 ? 1 : 0)) * region;
    Scratch& scratch = stages_.scratch();
    ZO_TRY(scratch.reserve(total));
    logprobs_.resize(call.owners.size());
    is_argmax_.resize(call.owners.size());
    const Walk walk{call, input, plan, master, scores, scratch.data(), region};
    uint8_t* frozen = nullptr;
    if (prefix.end() > 0) {
      frozen = walk.given(plan.levels.size());
      StageValues values;
      values.tokens = call.tokens.data();
      ZO_TRY(prefix.run(Pass::kForward, call.length, values, {walk.regions, walk.regions + region}, frozen));
    }
    ZO_TRY(descend(walk, 0, 0, frozen));
    scratch.release(0, total);
    return {};
  }

 private:
  // Arguments that stay the same during a call.
  struct Walk {
    const Call& call;
    const StepInput& input;
    const StepPlan& plan;
    const StateValues& master;
    std::vector<CandidateScores>& scores;
    uint8_t* regions;
    size_t region;

    uint8_t* between(size_t stage) const { return regions + stage % 2 * region; }
    uint8_t* given(size_t level) const { return regions + (2 + level) * region; }
  };

  // Goes through the probes of a level, for the time number `time`, over what the level outside it gave.
  Status descend(const Walk& walk, size_t level, uint32_t time, const uint8_t* in) {
    const bool last = level + 1 == walk.plan.levels.size();
    const size_t end = last ? stages_.head() : walk.plan.levels[level + 1].begin;
    const size_t begin = std::min(end, std::max<size_t>(walk.plan.levels[level].begin, stages_.prefix().end()));
    const uint32_t probes = walk.plan.levels[level].probes();
    for (uint32_t probe = 0; probe < probes; ++probe) {
      const ProbeMove move = walk.plan.move(level, time, probe);
      const auto eps = static_cast<float>(walk.input.run.number("eps"));
      const Direction direction{walk.input.run.seed(), walk.input.step, move.query, move.side * eps};
      // A group of the head alone, or of frozen layers, gives what it is given.
      const uint8_t* out = begin == end ? in : walk.given(level);
      ZO_TRY(forward(walk, begin, end, direction, in, walk.given(level)));
      if (last) {
        ZO_ASSIGN(seen, perturbed_.make(moved(stages_.head(), direction), direction, walk.master));
        StageValues values;
        values.activations = out;
        values.state = &seen;
        ZO_TRY(head_.score(walk.call, values, 1, logprobs_.data(), is_argmax_.data()));
        walk.scores[time * probes + probe].add(walk.call, logprobs_.data());
      } else {
        ZO_TRY(descend(walk, level + 1, time * probes + probe, out));
      }
    }
    return {};
  }

  // Runs the stages from `begin` up to `end` along a direction. The first reads `in`, the last writes `out`.
  Status forward(const Walk& walk, size_t begin, size_t end, const Direction& direction, const uint8_t* in,
                 uint8_t* out) {
    for (size_t stage = begin; stage < end; ++stage) {
      ZO_ASSIGN(seen, perturbed_.make(moved(stage, direction), direction, walk.master));
      StageValues values;
      values.tokens = walk.call.tokens.data();
      values.activations = in;
      values.next_activations = stage + 1 == end ? out : walk.between(stage);
      values.state = &seen;
      ZO_TRY(stages_.run(stage, Pass::kForward, walk.call.length, values));
      in = values.next_activations;
    }
    return {};
  }

  // The slots that a stage sees moved.
  const std::vector<size_t>& moved(size_t stage, const Direction& direction) const {
    return direction.distance == 0 ? none_ : moved_[stage];
  }

  Stages& stages_;
  Head head_;
  PerturbedSlots perturbed_;
  std::vector<std::vector<size_t>> moved_;  // by stage
  const std::vector<size_t> none_;
  std::vector<float> logprobs_;
  std::vector<float> is_argmax_;
};

}  // namespace

std::unique_ptr<Prober> make_nested_prober(Stages& stages) { return std::make_unique<NestedProber>(stages); }

}  // namespace zoexport
