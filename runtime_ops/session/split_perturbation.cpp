// Split perturbations (spzo; FedSPZO 3.2.2): the model is two blocks, f2(f1(x; w1); w2). The first is perturbed along a few
// directions, each sign computed once; over what it gives, the second is perturbed along several of its own.
//
// With P1 and P2 directions, sign s of direction i is followed by the directions d = (2i + s) P2 + j of the second block:
//   g2_d = (l(d, +) - l(d, -)) / (2 eps)
//   g1_i = (mean of the 2 P2 losses after +z1_i - mean of those after -z1_i) / (2 eps)
// A record has g1_0 ..., then g2_0 ...; each block is updated with the mean over its own.
#include <numeric>

#include "session/loss.h"
#include "session/manifest_blocks.h"
#include "session/perturbed_slots.h"
#include "session/slot_updates.h"
#include "session/split_head.h"
#include "session/trainer.h"

namespace zoexport {
namespace {

class SplitPerturbationTrainer : public Trainer {
 public:
  SplitPerturbationTrainer(const Manifest& manifest, Stages& stages, Programs& programs)
      : blocks_(*manifest.blocks),
        stages_(stages),
        head_(stages),
        updates_(manifest, stages.slots(), programs.engine()),
        perturbed_(stages.slots(), programs.engine(), stages.folder()) {
    const Slots& slots = stages.slots();
    for (size_t i = 0; i < slots.size(); ++i) {
      second_.push_back(in_second_block(manifest, slots.spec(i).name));
    }
    for (size_t stage = 0; stage < stages.count(); ++stage) {
      moved_.emplace_back();
      for (const size_t slot : stages.trainable(stage)) {
        // What both blocks read is perturbed in the second alone.
        if (second_[slot] == (stage >= blocks_.begin)) {
          moved_.back().push_back(slot);
        }
      }
    }
  }

  uint32_t queries() const override { return blocks_.scalars(); }

  CallLimits limits() const override { return stages_.limits(); }

  Result<StepOutput> step(const StepInput& input, const Layout& layout, Slots& slots) override {
    ZO_TRY(update(input, slots));
    const StateValues master = [&](size_t slot) -> const void* {
      return slots.trainable(slot) ? slots.next(slot) : slots.current(slot);
    };
    std::vector<CandidateScores> scores(2 * size_t{blocks_.second_directions()}, CandidateScores(layout));
    for (const Call& call : layout.calls) {
      ZO_TRY(score(call, input, master, scores));
    }
    return reduce(scores, input);
  }

  Status apply(const Record& record, uint64_t seed, const SlotSpec& slot, const void* in, void* out) override {
    const bool second = second_[stages_.slots().find(slot.name)];
    const SlotUpdate update{record.gradients.data() + (second ? blocks_.first : 0), directions(second), record.lr, seed,
                            record.step + 1};
    if (record.gradients.size() != blocks_.scalars() || !updates_.apply(slot, update, in, out)) {
      return Failure{ZO_STATE_ERROR, "record " + std::to_string(record.step),
                     std::to_string(record.gradients.size()) + " gradients", std::to_string(blocks_.scalars()),
                     "Restore the state from a copy, or start again in another folder."};
    }
    return {};
  }

  double promised(const Record& record) const override {
    const float* gradients = record.gradients.data();
    return promised_decrease(record.lr, gradients, blocks_.first) +
           promised_decrease(record.lr, gradients + blocks_.first, blocks_.second_directions());
  }

  const float* gradient(size_t) const override { return nullptr; }

 private:
  uint32_t directions(bool second) const { return second ? blocks_.second_directions() : blocks_.first; }

  // Makes the slots' next values, with the pending update or without one.
  Status update(const StepInput& input, Slots& slots) {
    const Record none{0, 0, 0, 0, std::vector<float>(blocks_.scalars(), 0.0f)};
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      if (slots.trainable(slot)) {
        ZO_TRY(apply(input.pending != nullptr ? *input.pending : none, input.run.seed, slots.spec(slot),
                     slots.current(slot), slots.next(slot)));
      }
    }
    return {};
  }

  // Runs the stages from `first` up to `last` along a direction. The first reads `in`, the last writes `out`; between
  // them `between` holds two regions in turn.
  Status forward(const Call& call, size_t first, size_t last, const Direction& direction, const StateValues& master,
                 const uint8_t* in, uint8_t* out, uint8_t* const between[2]) {
    for (size_t stage = first; stage < last; ++stage) {
      ZO_ASSIGN(seen, perturbed_.make(moved_[stage], direction, master));
      StageValues values;
      values.tokens = call.tokens.data();
      values.activations = in;
      values.next_activations = stage + 1 == last ? out : between[stage % 2];
      values.state = &seen;
      ZO_TRY(stages_.forward(stage, call.length, values));
      in = values.next_activations;
    }
    return {};
  }

  Status score(const Call& call, const StepInput& input, const StateValues& master,
               std::vector<CandidateScores>& scores) {
    // What the first block gives is kept; two regions pass from stage to stage, and a third what the head reads.
    const size_t region = stages_.activation_bytes(call.length);
    Scratch& scratch = stages_.scratch();
    ZO_TRY(scratch.reserve(4 * region));
    uint8_t* const kept = scratch.data();
    uint8_t* const between[2] = {kept + region, kept + 2 * region};
    // Where the second block is the head alone, it reads what is kept.
    const bool head_alone = blocks_.begin == stages_.head();
    uint8_t* const last = head_alone ? kept : kept + 3 * region;
    const auto eps = static_cast<float>(input.run.eps);
    const auto along = [&](uint32_t query, uint32_t minus) {
      return Direction{input.run.seed, input.step, query, minus != 0 ? -eps : eps};
    };
    const size_t entries = call.owners.size();
    logprobs_.resize(entries);
    is_argmax_.resize(entries);
    for (uint32_t side = 0; side < 2 * blocks_.first; ++side) {
      ZO_TRY(forward(call, 0, blocks_.begin, along(side / 2, side % 2), master, nullptr, kept, between));
      for (uint32_t j = 0; j < 2 * blocks_.second; ++j) {
        const uint32_t query = side * blocks_.second + j / 2;
        const Direction direction = along(query, j % 2);
        ZO_TRY(forward(call, blocks_.begin, stages_.head(), direction, master, kept, last, between));
        ZO_ASSIGN(seen, perturbed_.make(moved_[stages_.head()], direction, master));
        ZO_TRY(head_.score(call, reinterpret_cast<const float*>(last), 1, seen, logprobs_.data(), is_argmax_.data()));
        scores[2 * query + j % 2].add(call, logprobs_.data());
      }
    }
    scratch.release(0, 4 * region);
    return {};
  }

  StepOutput reduce(const std::vector<CandidateScores>& scores, const StepInput& input) const {
    StepOutput output;
    for (const CandidateScores& copy : scores) {
      output.losses.push_back(copy.mean_loss(input.run.loss));
    }
    const double distance = 2.0 * static_cast<float>(input.run.eps);
    const size_t after = 2 * size_t{blocks_.second};  // losses after one sign of a direction of the first block
    const auto mean = [&](size_t side) {
      const auto begin = output.losses.begin() + static_cast<std::ptrdiff_t>(side * after);
      return std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(after), 0.0) / static_cast<double>(after);
    };
    for (size_t i = 0; i < blocks_.first; ++i) {
      output.gradients.push_back(static_cast<float>((mean(2 * i) - mean(2 * i + 1)) / distance));
    }
    for (size_t d = 0; d < blocks_.second_directions(); ++d) {
      output.gradients.push_back(static_cast<float>((output.losses[2 * d] - output.losses[2 * d + 1]) / distance));
    }
    output.loss = std::accumulate(output.losses.begin(), output.losses.end(), 0.0) /
                  static_cast<double>(output.losses.size());
    return output;
  }

  const BlocksSpec& blocks_;
  Stages& stages_;
  SplitHead head_;
  SlotUpdates updates_;
  PerturbedSlots perturbed_;
  std::vector<bool> second_;                // by slot: whether it belongs to the second block
  std::vector<std::vector<size_t>> moved_;  // by stage: the slots that it sees perturbed
  std::vector<float> logprobs_;
  std::vector<float> is_argmax_;
};

}  // namespace

std::unique_ptr<Trainer> make_split_perturbation(const Manifest& manifest, Stages& stages, Programs& programs) {
  return std::make_unique<SplitPerturbationTrainer>(manifest, stages, programs);
}

}  // namespace zoexport
