#include "session/train/stage_gradient.h"

#include <algorithm>

namespace zoexport {
namespace {

// Regions begin at pages, so that those of a checkpoint can be given back alone.
constexpr size_t kRegionAlignment = 16384;

}  // namespace

// Where the activations of one call lie: activation k is what stage k takes. Stages from `base` on are run backward from
// their activations, in groups of `every` that start from a kept one.
struct StageGradient::Plan {
  Plan(size_t head, size_t lowest, uint32_t every, size_t bytes)
      : head(head),
        base(std::max<size_t>(lowest, 1)),
        every(std::max<size_t>(std::min<size_t>(every, head), 1)),
        bytes((bytes + kRegionAlignment - 1) / kRegionAlignment * kRegionAlignment) {}

  size_t groups() const { return head > base ? (head - base + every - 1) / every : 0; }
  size_t total() const { return (3 + every - 1 + groups()) * bytes; }
  // The first activation of the group that `k` belongs to.
  size_t start(size_t k) const { return base + (k - base) / every * every; }

  // Two regions for gradients, and for activations that nothing goes back to; that of the head; one for each activation
  // within a group; the kept ones.
  size_t turn(size_t k) const { return k % 2 * bytes; }
  size_t kept(size_t k) const { return (3 + every - 1 + (k - base) / every) * bytes; }
  size_t place(size_t k) const {
    if (k == head) {
      return 2 * bytes;
    }
    if (k < base) {
      return turn(k);
    }
    return k == start(k) ? kept(k) : (3 + k - start(k) - 1) * bytes;
  }

  size_t head, base, every, bytes;
};

Result<StageGradient> StageGradient::create(Stages& stages, GradientSums& sums) {
  StageGradient gradient(stages, sums);
  const Slots& slots = stages.slots();
  gradient.last_.resize(stages.count());
  gradient.lowest_ = stages.count();
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    if (!slots.trainable(slot)) {
      continue;
    }
    size_t stage = 0;
    const auto reads = [&](size_t s) {
      const std::vector<size_t>& all = stages.trainable(s);
      return std::find(all.begin(), all.end(), slot) != all.end();
    };
    while (stage < stages.count() && !reads(stage)) {
      ++stage;
    }
    if (stage == stages.count()) {
      return Failure{ZO_BUNDLE_ERROR, "manifest.json, stages",
                     "no stage that reads the trainable slot " + slots.spec(slot).name, "one",
                     "Compile the bundle again."};
    }
    gradient.last_[stage].push_back(slot);
    gradient.lowest_ = std::min(gradient.lowest_, stage);
  }
  for (size_t stage = gradient.lowest_; stage < stages.count(); ++stage) {
    if (!stages.has_backward(stage)) {
      return Failure{ZO_BUNDLE_ERROR, "manifest.json, stage " + stages.manifest().stages[stage].name,
                     "no backward program", "one, as this stage or one below it is trained",
                     "Compile the bundle again."};
    }
  }
  if (gradient.lowest_ == stages.count()) {
    return Failure{ZO_BUNDLE_ERROR, "manifest.json, state", "no trainable slot", "one", "Compile the bundle again."};
  }
  return gradient;
}

Status StageGradient::forward(size_t stage, const Call& call, const CallScalars& scalars, const StateValues& state,
                              const uint8_t* in, uint8_t* out) {
  StageValues values;
  values.scalars = &scalars;
  values.examples = &call.examples;
  values.tokens = call.tokens.data();
  values.activations = in;
  values.next_activations = out;
  values.state = &state;
  return stages_.run(stage, Pass::kForward, call.length, values);
}

void StageGradient::finish(size_t stage, const std::function<void(size_t)>& finished) const {
  for (size_t slot : last_[stage]) {
    finished(slot);
  }
}

Status StageGradient::run(const Call& call, const CallScalars& scalars, const float* weights, uint32_t every,
                          const StateValues& state, float* logprobs, const std::function<Status()>& scored,
                          const std::function<void(size_t)>& finished) {
  const size_t head = stages_.head();
  const Plan plan(head, lowest_, every, stages_.activation_bytes(call.length));
  Scratch& scratch = stages_.scratch();
  ZO_TRY(scratch.reserve(plan.total()));
  uint8_t* const data = scratch.data();
  for (size_t stage = 0; stage < head; ++stage) {
    ZO_TRY(forward(stage, call, scalars, state, data + plan.place(stage), data + plan.place(stage + 1)));
  }
  const auto state_gradient = [&](size_t slot) { return sums_.target(slot); };
  ZO_TRY(head_.gradient(call, reinterpret_cast<const float*>(data + plan.place(head)), weights, state, logprobs,
                        reinterpret_cast<float*>(data + plan.turn(head)), state_gradient, [&] { sums_.add(); }));
  ZO_TRY(scored());
  finish(head, finished);
  for (size_t stage = head; stage-- > lowest_;) {
    const size_t start = stage > 0 ? plan.start(stage) : 0;
    // The forward pass left the activations of the last group; those of the others are made when the first is needed.
    const bool enters_group = stage > 0 && stage + 1 < head && stage + 1 == plan.start(stage + 1);
    for (size_t k = start; enters_group && k < stage; ++k) {
      ZO_TRY(forward(k, call, scalars, state, data + plan.place(k), data + plan.place(k + 1)));
    }
    StageValues values;
    values.scalars = &scalars;
    values.examples = &call.examples;
    values.tokens = call.tokens.data();
    values.activations = data + plan.place(stage);
    values.output_gradients = data + plan.turn(stage + 1);
    values.input_gradients = data + plan.turn(stage);
    values.state = &state;
    values.state_gradient = state_gradient;
    ZO_TRY(stages_.run(stage, Pass::kBackward, call.length, values));
    sums_.add();
    finish(stage, finished);
    if (stage > 0 && stage == start) {
      scratch.release(plan.kept(stage), plan.bytes);
    }
  }
  scratch.release(0, plan.total());
  return {};
}

}  // namespace zoexport
