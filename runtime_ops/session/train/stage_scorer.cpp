#include "session/train/stage_scorer.h"

namespace zoexport {

uint32_t StageScorer::copies() const { return perturbed_copies_ ? stages_.manifest().step.together() : 1; }

CallLimits StageScorer::limits() const {
  CallLimits limits = stages_.limits(pass_);
  if (stacked()) {
    limits.rows /= copies();
    limits.max_labels = stages_.manifest().max_labels;
  }
  return limits;
}

Result<StateValues> StageScorer::perturbed(size_t stage, uint32_t copy, const CallScalars& scalars,
                                           const StateValues& state) {
  if (!perturbed_copies_ || programs_perturb()) {
    return state;
  }
  Direction direction{scalars.seed, static_cast<uint32_t>(scalars.step)};
  if (perturbed_copies_ == Copies::kOne) {
    direction.query = static_cast<uint32_t>(scalars.query);
    direction.distance = scalars.sign * scalars.epsilon;
  } else {
    const ProbeMove move = stages_.manifest().step.move(0, 0, copy);
    if (move.side == 0) {
      return state;
    }
    direction.query = move.query;
    direction.distance = move.side * scalars.epsilon;
  }
  return perturbed_.make(stages_.trainable(stage), direction, state);
}

Status StageScorer::run(const Call& call, const CallScalars& scalars, Slots& slots, const StateValues& state, bool next,
                        Turn turn) {
  const bool updated = next && !stages_.manifest().whole();
  if (updated) {
    StageValues values;
    values.scalars = &scalars;
    values.state = &state;
    values.next_state = &slots;
    ZO_TRY(stages_.update(values));
  }
  const StateValues master = [&](size_t slot) -> const void* {
    return updated && slots.trainable(slot) ? slots.next(slot) : state(slot);
  };
  // Pass p reads and writes regions 2p and 2p + 1 in turn: one for each copy, or one that has them all. The outputs of
  // frozen layers lie beyond those.
  const uint32_t passes = programs_perturb() ? 1 : copies();
  FrozenPrefix& prefix = stages_.prefix();
  const size_t region = stages_.activation_bytes(call.length);
  const size_t between = size_t{2} * passes * region;
  const size_t frozen = prefix.end() > 0 ? region : 0;
  Scratch& scratch = stages_.scratch();
  ZO_TRY(scratch.reserve(between + frozen));
  const auto place = [&](uint32_t pass, size_t stage) {
    return scratch.data() + (frozen > 0 && stage == prefix.end() ? between : (size_t{2} * pass + stage % 2) * region);
  };
  StageValues values;
  values.scalars = &scalars;
  values.examples = &call.examples;
  values.tokens = call.tokens.data();
  if (stacked()) {
    repeated_.clear();
    for (uint32_t copy = 0; copy < copies(); ++copy) {
      repeated_.insert(repeated_.end(), call.tokens.begin(), call.tokens.end());
    }
    values.tokens = repeated_.data();
  }
  if (frozen > 0 && turn.number == 0) {
    ZO_TRY(prefix.run(pass_, call.length, values, {scratch.data(), scratch.data() + region}, place(0, prefix.end())));
  }
  for (size_t stage = prefix.end(); stage < stages_.head(); ++stage) {
    for (uint32_t pass = 0; pass < passes; ++pass) {
      ZO_ASSIGN(seen, perturbed(stage, pass, scalars, master));
      values.activations = place(pass, stage);
      values.next_activations = place(pass, stage + 1);
      values.state = &seen;
      ZO_TRY(stages_.run(stage, pass_, call.length, values));
    }
  }
  entries_ = call.label_tokens.size();
  logprobs_.resize(given() * entries_);
  is_argmax_.resize(given() * entries_);
  values.next_state = next ? &slots : nullptr;
  // If programs perturb, the head gets the same state for all copies.
  for (uint32_t pass = 0; pass < passes; ++pass) {
    ZO_ASSIGN(seen, perturbed(stages_.head(), pass, scalars, master));
    values.activations = place(pass, stages_.head());
    values.state = &seen;
    ZO_TRY(head_.score(call, values, copies() / passes, logprobs_.data() + pass * entries_,
                       is_argmax_.data() + pass * entries_));
  }
  scratch.release(0, between + (turn.number + 1 == turn.count ? frozen : 0));
  return {};
}

}  // namespace zoexport
