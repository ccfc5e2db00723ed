#include "session/train/stage_gradient.h"

#include <algorithm>

namespace zoexport {
namespace {

// Regions begin at pages, so that those of a checkpoint can be given back alone.
constexpr size_t kRegionAlignment = 16384;

size_t region(size_t bytes) { return (bytes + kRegionAlignment - 1) / kRegionAlignment * kRegionAlignment; }

}  // namespace

// Layout of one call's activations: activation k is the input of stage k. Stages from `base` on run backward from their
// activations: those below `saving` in groups of `every` that start from a kept one, the others from saved results.
struct StageGradient::Plan {
  Plan(const Stages& stages, size_t lowest, size_t saving, uint32_t every, uint32_t length)
      : head(stages.head()),
        base(std::max<size_t>(lowest, 1)),
        saving(std::max(saving, base)),
        every(std::max<size_t>(std::min<size_t>(every, this->saving - base), 1)),
        bytes(region(stages.activation_bytes(length))),
        groups((this->saving - base + this->every - 1) / this->every),
        total((3 + this->every - 1 + groups) * bytes) {
    for (size_t stage = this->saving; stage < head; ++stage) {
      saved.push_back(total + bytes);
      total = saved.back() + region(stages.saved_bytes(stage, length));
    }
  }

  bool saves(size_t stage) const { return stage >= saving && stage < head; }
  // The first activation of the group that `k` belongs to.
  size_t start(size_t k) const { return base + (k - base) / every * every; }

  // Two regions for gradients, and for activations that nothing goes back to; that of the head; one for each activation
  // within a group; the kept ones; and of each stage that saves, its activation and what it saves.
  size_t turn(size_t k) const { return k % 2 * bytes; }
  size_t results(size_t stage) const { return saved[stage - saving]; }
  size_t place(size_t k) const {
    if (k == head) {
      return 2 * bytes;
    }
    if (k < base) {
      return turn(k);
    }
    if (k >= saving) {
      return results(k) - bytes;
    }
    return k == start(k) ? (3 + every - 1 + (k - base) / every) * bytes : (3 + k - start(k) - 1) * bytes;
  }

  uint8_t* data = nullptr;
  size_t head, base, saving, every, bytes, groups, total;
  std::vector<size_t> saved;  // where the results of each stage that saves lie
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

size_t StageGradient::first_saving(uint32_t length, uint64_t bytes) const {
  const size_t activation = region(stages_.activation_bytes(length));
  size_t stage = stages_.head();
  while (stage > std::max<size_t>(lowest_, 1) && stages_.can_save(stage - 1)) {
    const size_t taken = activation + region(stages_.saved_bytes(stage - 1, length));
    if (taken > bytes) {
      break;
    }
    bytes -= taken;
    --stage;
  }
  return stage;
}

Status StageGradient::forward(const Plan& plan, size_t stage, const Call& call, const CallScalars& scalars,
                              const StateValues& state) {
  StageValues values = values_of(call, scalars, state);
  values.activations = plan.data + plan.place(stage);
  values.next_activations = plan.data + plan.place(stage + 1);
  values.saved = plan.saves(stage) ? plan.data + plan.results(stage) : nullptr;
  return stages_.run(stage, plan.saves(stage) ? Pass::kSaving : Pass::kForward, call.length, values);
}

StageValues StageGradient::values_of(const Call& call, const CallScalars& scalars, const StateValues& state) {
  StageValues values;
  values.scalars = &scalars;
  values.examples = &call.examples;
  values.tokens = call.tokens.data();
  values.state = &state;
  return values;
}

void StageGradient::finish(size_t stage, const std::function<void(size_t)>& finished) const {
  for (size_t slot : last_[stage]) {
    finished(slot);
  }
}

Status StageGradient::run(const Call& call, const CallScalars& scalars, const float* weights, const Kept& kept,
                          const StateValues& state, float* logprobs, const std::function<Status()>& scored,
                          const std::function<void(size_t)>& finished) {
  const size_t head = stages_.head();
  Plan plan(stages_, lowest_, first_saving(call.length, kept.bytes), kept.every, call.length);
  Scratch& scratch = stages_.scratch();
  ZO_TRY(scratch.reserve(plan.total));
  uint8_t* const data = plan.data = scratch.data();
  FrozenPrefix& prefix = stages_.prefix();
  if (prefix.end() > 0) {
    ZO_TRY(prefix.run(Pass::kForward, call.length, values_of(call, scalars, state),
                      {data + plan.turn(0), data + plan.turn(1)}, data + plan.place(prefix.end())));
  }
  for (size_t stage = prefix.end(); stage < head; ++stage) {
    ZO_TRY(forward(plan, stage, call, scalars, state));
  }
  const auto state_gradient = [&](size_t slot) { return sums_.target(slot); };
  ZO_TRY(head_.gradient(call, reinterpret_cast<const float*>(data + plan.place(head)), weights, state, logprobs,
                        reinterpret_cast<float*>(data + plan.turn(head)), state_gradient, [&] { sums_.add(); }));
  ZO_TRY(scored());
  finish(head, finished);
  for (size_t stage = head; stage-- > lowest_;) {
    const bool saved = plan.saves(stage);
    const size_t start = stage == 0 || saved ? stage : plan.start(stage);
    // The forward pass left the activations of the last group; those of the others are made when the first is needed.
    const bool enters_group = stage + 1 < plan.saving && stage + 1 == plan.start(stage + 1);
    for (size_t k = start; enters_group && k < stage; ++k) {
      ZO_TRY(forward(plan, k, call, scalars, state));
    }
    StageValues values = values_of(call, scalars, state);
    values.activations = data + plan.place(stage);
    values.output_gradients = data + plan.turn(stage + 1);
    values.input_gradients = data + plan.turn(stage);
    values.saved = saved ? data + plan.results(stage) : nullptr;
    values.state_gradient = state_gradient;
    ZO_TRY(stages_.run(stage, saved ? Pass::kFromSaved : Pass::kBackward, call.length, values));
    sums_.add();
    finish(stage, finished);
    if (stage > 0 && stage == start) {
      scratch.release(plan.place(stage), plan.bytes + (saved ? region(stages_.saved_bytes(stage, call.length)) : 0));
    }
  }
  scratch.release(0, plan.total);
  return {};
}

}  // namespace zoexport
