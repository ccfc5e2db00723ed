// The part of a session that steps, trains and evaluates.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "rng/permutation.h"
#include "session/loss.h"
#include "session/memory.h"
#include "session/session.h"

namespace zoexport {
namespace {

constexpr size_t kEvaluationGroup = 64;  // examples laid out at a time: full calls, and little memory
constexpr double kPi = 3.14159265358979323846;

double scheduled(const RunSettings& run, uint64_t step, uint64_t total) {
  // The schedule ends at step `total`; steps beyond it, and runs without an end, keep its first or last value.
  const double done = total == 0 ? 0.0 : std::min(1.0, static_cast<double>(step) / static_cast<double>(total));
  switch (run.schedule) {
    case ZO_SCHEDULE_LINEAR:
      return run.lr * (1.0 - done);
    case ZO_SCHEDULE_COSINE:
      return run.lr * (1.0 + std::cos(kPi * done)) / 2.0;
    default:
      return run.lr;
  }
}

}  // namespace

Status Session::check_dataset(const Dataset& dataset, bool needs_choices) const {
  const std::string fix = "Tokenize the data for this bundle.";
  if (dataset.size() == 0) {
    return Failure{ZO_DATA_ERROR, "examples", "none", "at least one", "Add examples."};
  }
  if (dataset.size() > UINT32_MAX - 1) {
    return Failure{ZO_DATA_ERROR, "examples", std::to_string(dataset.size()), "fewer than 2^32", "Use fewer examples."};
  }
  if (dataset.longest() > manifest_.seq_len) {
    return Failure{ZO_DATA_ERROR, "examples", "one of " + std::to_string(dataset.longest()) + " tokens",
                   "at most seq_len = " + std::to_string(manifest_.seq_len) + " tokens", fix};
  }
  if (manifest_.vocab_size > 0 && dataset.largest_token() >= manifest_.vocab_size) {
    return Failure{ZO_DATA_ERROR, "examples", "token " + std::to_string(dataset.largest_token()),
                   "tokens below vocab_size = " + std::to_string(manifest_.vocab_size), fix};
  }
  for (size_t i = 0; needs_choices && i < dataset.size(); ++i) {
    if (dataset.candidates(i) < 2) {
      return Failure{ZO_DATA_ERROR, "example " + std::to_string(i), "no choices",
                     "at least two candidates, since loss is choices", "Add choices to it, or use loss=full."};
    }
  }
  return {};
}

std::vector<uint64_t> Session::batch(uint64_t step, size_t examples) {
  const uint64_t size = uint64_t{run_.batch} * run_.accumulate;
  std::vector<uint64_t> indices;
  for (uint64_t position = step * size; position < (step + 1) * size; ++position) {
    const uint64_t epoch = position / examples;
    if (order_epoch_ != epoch || order_.size() != examples) {
      order_.resize(examples);
      rng::permutation(run_.seed, static_cast<uint32_t>(epoch), static_cast<uint32_t>(examples), order_.data());
      order_epoch_ = epoch;
    }
    indices.push_back(order_[position % examples]);
  }
  return indices;
}

Status Session::prepare_step() {
  if (state_ && !state_->writable()) {
    return Failure{ZO_STATE_ERROR, state_->path(), "a state attached for reading", "one attached for training",
                   "Attach it with ZO_STATE_TRAIN."};
  }
  if (records_.size() >= UINT32_MAX) {
    return Failure{ZO_STATE_ERROR, "session", "2^32 - 1 steps", "fewer", "Start again in another state."};
  }
  ZO_TRY(make_room());
  return write_initial_if_changed();
}

Result<StepReport> Session::take_step(const Dataset& dataset, const std::vector<uint64_t>& indices, double lr) {
  ZO_TRY(prepare_step());
  const auto start = std::chrono::steady_clock::now();
  const auto number = static_cast<uint32_t>(records_.size());
  const Layout layout =
      lay_out(dataset, indices.data(), indices.size(), run_.loss == ZO_LOSS_CHOICES, trainer_->limits());
  const StepInput input{run_, number, static_cast<float>(lr), pending()};
  StepReport report;
  ZO_ASSIGN(output, trainer_->step(input, layout, *slots_));
  report.output = std::move(output);
  report.step = number;
  report.lr = lr;

  const auto loss = static_cast<float>(report.output.loss);
  // Decided on a copy: a step whose record cannot be written has not happened.
  DivergenceGuard guard = guard_;
  Record record{number, input.lr, static_cast<float>(run_.eps), loss, report.output.gradients};
  if (const auto divergence = guard.observe(record, trainer_->promised(record))) {
    return diverged(*divergence).failure();
  }
  slots_->copies().set_next_steps(uint64_t{number} + 1);
  if (state_) {
    ZO_TRY(state_->log().append(record));
  }
  // Only now: until the record is in the log, the state is the one before the step.
  slots_->advance();
  applied_ = records_.size() + (deferred() ? 0 : 1);
  records_.push_back(std::move(record));
  guard_ = guard;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

Status Session::diverged(const Divergence& divergence) {
  const std::string step = std::to_string(records_.size());
  if (state_) {
    state_->remove_snapshots_after(divergence.kept);
    ZO_TRY(state_->log().cut(divergence.kept));
  }
  records_.resize(divergence.kept);
  ZO_TRY(deferred() ? restore(records_.size()) : go_back());
  watch_again();
  return Failure{ZO_DIVERGED, "step " + step, divergence.found, divergence.expected,
                 "Lower lr (it is " + std::to_string(run_.lr) + "). The state is back at " +
                     std::to_string(records_.size()) + " steps, before the run left its range."};
}

void Session::watch_again() {
  guard_ = DivergenceGuard();
  for (const Record& record : records_) {
    (void)guard_.observe(record, trainer_->promised(record));
  }
}

Result<StepReport> Session::step(const Dataset& dataset, const uint64_t* indices, size_t count) {
  ZO_TRY(check_dataset(dataset, run_.loss == ZO_LOSS_CHOICES));
  const std::vector<uint64_t> chosen(indices, indices + count);
  for (uint64_t index : chosen) {
    if (index >= dataset.size()) {
      return Failure{ZO_INVALID_ARGUMENT, "indices", std::to_string(index),
                     "numbers below " + std::to_string(dataset.size()), "Pass indices of examples."};
    }
  }
  if (chosen.empty()) {
    return Failure{ZO_INVALID_ARGUMENT, "indices", "none", "at least one", "Pass indices of examples."};
  }
  return take_step(dataset, chosen, scheduled(run_, records_.size(), run_.total_steps));
}

uint64_t Session::steps_of_a_snapshot() const {
  uint64_t values = 0;
  for (const SlotSpec& slot : manifest_.slots) {
    values += slot.role == "trainable" ? slot.trained_values() : 0;
  }
  return snapshot_every(values * queries());
}

Status Session::train(const Dataset& dataset, uint64_t total_steps,
                      const std::function<bool(const zo_progress&)>& go_on) {
  ZO_TRY(check_dataset(dataset, run_.loss == ZO_LOSS_CHOICES));
  if (records_.size() >= total_steps) {
    return {};
  }
  const uint64_t every = steps_of_a_snapshot();
  AnonymousPeak anonymous;
  while (records_.size() < total_steps) {
    const uint64_t number = records_.size();
    const auto report =
        take_step(dataset, batch(number, dataset.size()), scheduled(run_, number, total_steps));
    if (!report.ok()) {
      return report.failure();
    }
    if (state_ && records_.size() % every == 0) {
      ZO_TRY(save());
    }
    const zo_progress progress{sizeof(zo_progress), records_.size(), total_steps,
                               report->output.loss, report->lr,      report->seconds,
                               memory_usage().rss_bytes, anonymous.take()};
    if (!go_on(progress)) {
      if (state_) {
        ZO_TRY(save());
      }
      return Failure{ZO_CANCELLED, "step " + std::to_string(records_.size()) + " of " + std::to_string(total_steps),
                     "a request to stop", "the run to go on",
                     state_ ? "Train again with the same state to continue." : "Attach a state folder to resume a run."};
    }
  }
  return state_ ? save() : Status();
}

Result<zo_evaluation> Session::evaluate(const Dataset& dataset) {
  ZO_TRY(check_dataset(dataset, run_.loss == ZO_LOSS_CHOICES));
  // Between steps the slots' next values are free: they hold the finished state.
  const Record* record = pending();
  for (size_t i = 0; record != nullptr && i < slots_->size(); ++i) {
    if (slots_->trainable(i)) {
      ZO_TRY(trainer_->apply(*record, run_.seed, slots_->spec(i), slots_->current(i), slots_->next(i)));
    }
  }
  const auto state = [&](size_t slot) -> const void* {
    return record != nullptr && slots_->trainable(slot) ? slots_->next(slot) : slots_->current(slot);
  };
  double loss = 0;
  uint64_t with_choices = 0, right = 0, labels = 0, argmax = 0;
  std::vector<uint64_t> indices(dataset.size());
  std::iota(indices.begin(), indices.end(), 0);
  for (size_t begin = 0; begin < indices.size(); begin += kEvaluationGroup) {
    const size_t count = std::min(kEvaluationGroup, indices.size() - begin);
    const Layout layout = lay_out(dataset, &indices[begin], count, /*all_candidates=*/true, evaluator_->limits());
    std::vector<bool> is_right(layout.labels.size(), false);
    for (const Layout::Example& example : layout.examples) {
      is_right[example.first + example.target] = true;
    }
    CandidateScores scores(layout);
    for (const Call& call : layout.calls) {
      CallScalars scalars;
      scalars.seed = run_.seed;
      ZO_TRY(evaluator_->run(call, scalars, *slots_, state, /*next=*/false));
      scores.add(call, evaluator_->logprobs(0));
      for (size_t i = 0; i < call.owners.size(); ++i) {
        if (is_right[call.owners[i]]) {
          ++labels;
          argmax += evaluator_->is_argmax()[i] > 0.5f ? 1 : 0;
        }
      }
    }
    for (size_t i = 0; i < layout.examples.size(); ++i) {
      loss += scores.loss(i, run_.loss);
      if (layout.examples[i].count > 1) {
        ++with_choices;
        right += scores.right(i) ? 1 : 0;
      }
    }
  }
  zo_evaluation result{};
  result.examples = dataset.size();
  result.loss = loss / static_cast<double>(dataset.size());
  result.accuracy = with_choices == 0 ? std::nan("") : static_cast<double>(right) / static_cast<double>(with_choices);
  result.token_accuracy = static_cast<double>(argmax) / static_cast<double>(labels);
  return result;
}

}  // namespace zoexport
