// Session: steps, training, validation, and following another session's records.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "rng/permutation.h"
#include "session/data/loss.h"
#include "session/decimal.h"
#include "session/manifest/needs.h"
#include "session/memory.h"
#include "session/session.h"

namespace zoexport {
namespace {

constexpr uint64_t kEvaluations = 10;  // default number of evaluations in a run
constexpr double kPi = 3.14159265358979323846;

double scheduled(const RunSettings& run, uint64_t step, uint64_t total) {
  const double learning_rate = run.number("learning_rate");
  const uint64_t warmup = run.whole("warmup_steps");
  if (step < warmup) {
    return learning_rate * static_cast<double>(step + 1) / static_cast<double>(warmup);
  }
  // The schedule ends at step `total`. Later steps keep its last value; runs without an end keep its first.
  const uint64_t past = step - warmup, whole = std::max(total, warmup) - warmup;
  const double done = whole == 0 ? 0.0 : std::min(1.0, static_cast<double>(past) / static_cast<double>(whole));
  const std::string schedule = run.text("lr_scheduler_type");
  return schedule == "linear"   ? learning_rate * (1.0 - done)
         : schedule == "cosine" ? learning_rate * (1.0 + std::cos(kPi * done)) / 2.0
                                : learning_rate;
}

Failure refused(const Record& record, const std::string& found, const std::string& expected) {
  return {ZO_INVALID_ARGUMENT, "record " + std::to_string(record.step), found, expected,
          "Pass the records that a session of this bundle made, in order and unchanged."};
}

}  // namespace

// --- Steps, training and evaluation ----------------------------------------------------------------------------------

Status Session::check_tokens(const Dataset& dataset) const {
  const std::string fix = "Tokenize the data for this bundle.";
  if (dataset.size() == 0) {
    return Failure{ZO_DATA_ERROR, "examples", "none", "at least one", "Add examples."};
  }
  if (dataset.size() > UINT32_MAX - 1) {
    return Failure{ZO_DATA_ERROR, "examples", std::to_string(dataset.size()), "fewer than 2^32", "Use fewer examples."};
  }
  if (dataset.longest() > manifest_.max_length) {
    return Failure{ZO_DATA_ERROR, "examples", "one of " + std::to_string(dataset.longest()) + " tokens",
                   "at most max_length = " + std::to_string(manifest_.max_length) + " tokens", fix};
  }
  if (manifest_.vocab_size > 0 && dataset.largest_token() >= manifest_.vocab_size) {
    return Failure{ZO_DATA_ERROR, "examples", "token " + std::to_string(dataset.largest_token()),
                   "tokens below vocab_size = " + std::to_string(manifest_.vocab_size), fix};
  }
  return {};
}

Status Session::check_dataset(const Dataset& dataset) const {
  ZO_TRY(check_tokens(dataset));
  const int32_t loss = run_.loss();
  for (size_t i = 0; compares(loss) && i < dataset.size(); ++i) {
    const size_t candidates = dataset.candidates(i);
    if (of_pairs(loss) ? candidates == 2 : candidates > 1) {
      continue;
    }
    const std::string where = "example " + std::to_string(i);
    if (of_pairs(loss)) {
      return Failure{
          ZO_DATA_ERROR, where, std::to_string(candidates) + (candidates == 1 ? " candidate" : " candidates"),
          "two, the chosen and the rejected answer, since the loss is one of pairs", "Give pairs, or use loss=full."};
    }
    return Failure{ZO_DATA_ERROR, where, "no choices", "at least two candidates, since loss is choices",
                   "Add choices to it, or use loss=full."};
  }
  return {};
}

std::vector<uint64_t> Session::batch(uint64_t step, size_t examples) {
  const uint64_t size = run_.whole("batch_size") * run_.whole("gradient_accumulation_steps");
  std::vector<uint64_t> indices;
  for (uint64_t position = step * size; position < (step + 1) * size; ++position) {
    const uint64_t epoch = position / examples;
    if (order_epoch_ != epoch || order_.size() != examples) {
      order_.resize(examples);
      rng::permutation(run_.seed(), static_cast<uint32_t>(epoch), static_cast<uint32_t>(examples), order_.data());
      order_epoch_ = epoch;
    }
    indices.push_back(order_[position % examples]);
  }
  return indices;
}

Status Session::check_writable() const {
  return !state_ || state_->writable() ? Status()
                                       : Failure{ZO_STATE_ERROR, state_->path(), "a state attached for reading",
                                                 "one attached for training", "Attach it without read_only."};
}

Status Session::prepare_step() {
  forget();  // free the memory of generation before training
  ZO_TRY(check_writable());
  if (records_.size() >= UINT32_MAX) {
    return Failure{ZO_STATE_ERROR, "session", "2^32 - 1 steps", "fewer", "Start again in another state."};
  }
  ZO_TRY(make_room());
  return write_initial_if_changed();
}

Result<StepReport> Session::take_step(const Dataset& dataset, const std::vector<uint64_t>& indices,
                                      double learning_rate, const ReferenceScores* reference) {
  ZO_TRY(prepare_step());
  const auto start = std::chrono::steady_clock::now();
  const auto number = static_cast<uint32_t>(records_.size());
  const StepInput input{run_, number, static_cast<float>(learning_rate), pending()};
  const auto compute = [&]() -> Result<StepOutput> {
    ZO_ASSIGN(layout, lay_out(dataset, indices.data(), indices.size(), compares(run_.loss()), trainer_->limits()));
    ZO_ASSIGN(scores, reference_of(dataset, indices.data(), indices.size(), reference, {}));
    layout.reference = std::move(scores);
    return trainer_->step(input, layout, *slots_);
  };
  StepReport report;
  ZO_ASSIGN(output, or_fall_back(compute));
  ZO_TRY(Faults::current()->check());  // before the step takes effect
  report.output = std::move(output);
  report.step = number;
  report.learning_rate = learning_rate;

  const auto loss = static_cast<float>(report.output.loss);
  // Use a copy of the guard: if the record cannot be written, the step must have no effect.
  DivergenceGuard guard = guard_;
  Record record{number, input.learning_rate, static_cast<float>(run_.number("eps")), loss, report.output.gradients};
  std::string bad = report.output.not_finite;
  bad = bad.empty() && std::isfinite(loss) ? trainer_->out_of_range(record, run_.seed(), &*slots_) : bad;
  if (!bad.empty()) {
    return diverged({number, bad, "an update of finite numbers, within the range of the slots' floats"}).failure();
  }
  if (const auto divergence = guard.observe(record, trainer_->promised(record))) {
    return diverged(*divergence).failure();
  }
  slots_->copies().set_next_steps(uint64_t{number} + 1);
  if (state_) {
    ZO_TRY(state_->append(record));
  }
  // Advance only now: until the record is in the log, the state is that before the step.
  slots_->advance();
  applied_ = records_.size() + (deferred() ? 0 : 1);
  records_.push_back(std::move(record));
  guard_ = std::move(guard);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

Status Session::diverged(const Divergence& divergence) {
  const std::string step = std::to_string(records_.size());
  if (state_) {
    ZO_TRY(state_->cut(divergence.kept));
  }
  records_.resize(divergence.kept);
  ZO_TRY(deferred() ? restore(records_.size()) : go_back());
  watch_again();
  return Failure{ZO_DIVERGED, "step " + step, divergence.found, divergence.expected,
                 "Lower learning_rate (it is " + decimal(run_.number("learning_rate")) +
                     (state_ && !records_.empty() ? "; --change-settings takes another" : "") +
                     "). The state is back at " + std::to_string(records_.size()) +
                     " steps, before the run left its range."};
}

void Session::watch_again() {
  guard_ = DivergenceGuard();
  for (const Record& record : records_) {
    (void)guard_.observe(record, trainer_->promised(record));
  }
}

Result<StepReport> Session::step(const Dataset& dataset, const uint64_t* indices, size_t count) {
  return judged(step_on(dataset, indices, count));
}

Result<StepReport> Session::step_on(const Dataset& dataset, const uint64_t* indices, size_t count) {
  ZO_TRY(check_dataset(dataset));
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
  // The host chooses the examples of each step, so the run has no dataset of its own.
  ZO_TRY(begin_run(run_.whole("total_steps"), nullptr));
  return take_step(dataset, chosen, scheduled(run_, records_.size(), run_.whole("total_steps")), nullptr);
}

uint64_t Session::steps_of_a_snapshot() const {
  uint64_t values = 0;
  for (const SlotSpec& slot : manifest_.slots) {
    values += slot.role == "trainable" ? slot.trained_values() : 0;
  }
  // An update regenerates the noise of every step within its horizon.
  return snapshot_every(values * queries() * manifest_.step.update.horizon);
}

// --- Training, with validation on held-out examples (docs/formats.md, "JSON files of a run") ---------

Result<std::optional<Evaluations>> Session::asked_validation(const Validation& asked, uint64_t total_steps) const {
  const std::string where = state_ ? state_->path() : "session";
  const bool begun = evaluations_ && !records_.empty();
  if (asked.held_out == nullptr) {
    if (begun && !changes_settings_) {
      return Failure{ZO_STATE_ERROR, where,
                     "a run that evaluates on " + std::to_string(evaluations_->data.examples) + " held-out examples",
                     "those examples", "Pass them (--eval-data), or let the run go on without: --change-settings."};
    }
    return std::optional<Evaluations>();
  }
  ZO_TRY(check_dataset(*asked.held_out));
  Evaluations now;
  now.settings = begun ? evaluations_->settings : ValidationSettings{0, 0, true};
  now.settings.every = asked.every > 0 ? asked.every : now.settings.every;
  if (now.settings.every == 0) {
    now.settings.every = static_cast<uint32_t>(std::clamp<uint64_t>(total_steps / kEvaluations, 1, UINT32_MAX));
  }
  now.settings.patience = asked.patience > 0 ? asked.patience : now.settings.patience;
  now.settings.keep_best = asked.keep_best.value_or(now.settings.keep_best);
  now.data = {asked.held_out->digest(), asked.held_out->size()};
  if (begun && !changes_settings_) {
    ZO_TRY(check_validation(where, *evaluations_, now));
  }
  if (evaluations_ && evaluations_->data.sha256 == now.data.sha256) {
    now.made = evaluations_->made;
  }
  return std::optional<Evaluations>(std::move(now));
}

Result<bool> Session::validate(const Validation& validation, uint64_t total_steps, const GoOn& part) {
  const uint64_t step = records_.size();
  evaluations_->cut(step);  // a diverged run may have gone back to an earlier step
  if (evaluations_->has(step) || (step % evaluations_->settings.every != 0 && step != total_steps)) {
    return true;
  }
  const auto found = evaluate(*validation.held_out, part);
  if (!found.ok()) {
    return found.failure().code == ZO_CANCELLED ? Result<bool>(false) : Result<bool>(found.failure());
  }
  evaluations_->made.push_back({step, *found});
  const Evaluated* const lowest = evaluations_->best();
  const bool best = lowest != nullptr && lowest->step == step;
  if (state_) {
    // Save first, so that the best evaluation in the file always has its values on disk.
    if (best && evaluations_->settings.keep_best) {
      ZO_TRY(save());
    }
    ZO_TRY(state_->write_evaluations(*evaluations_));
  }
  return !validation.on_evaluated || validation.on_evaluated(evaluations_->made.back(), best);
}

Status Session::stopped(uint64_t total_steps) {
  if (state_) {
    ZO_TRY(save());
  }
  return Failure{ZO_CANCELLED, "step " + std::to_string(records_.size()) + " of " + std::to_string(total_steps),
                 "a request to stop", "the run to go on",
                 state_ ? "Train again with the same state to continue." : "Attach a state folder to resume a run."};
}

Status Session::train(const Dataset& dataset, const TrainOptions& options) {
  return judged(train_on(dataset, options));
}

Status Session::train_on(const Dataset& dataset, const TrainOptions& options) {
  const uint64_t total_steps = options.total_steps;
  const bool validates = options.validation.held_out != nullptr;
  ZO_TRY(check_dataset(dataset));
  // The manifest's own settings were not checked by configure().
  ZO_TRY(check_batch(run_, manifest_.max_length));
  ZO_ASSIGN(validation, asked_validation(options.validation, total_steps));
  const bool steps = records_.size() < total_steps;
  if (steps || validates) {
    ZO_TRY(check_writable());
  }
  ZO_TRY(steps ? begin_run(total_steps, &dataset) : check_run(dataset));
  if (validation) {
    evaluations_ = std::move(validation);
  }
  std::vector<const Dataset*> scored;
  if (steps) {
    scored.push_back(&dataset);
  }
  if (validates) {
    scored.push_back(options.validation.held_out);
  }
  if (const Status known = know_reference(scored, options.part); !known.ok()) {
    return known.failure().code == ZO_CANCELLED ? stopped(total_steps) : known;
  }
  const ReferenceScores* const reference =
      references_.empty() ? nullptr : find_reference({dataset.digest(), dataset.size()});
  const uint64_t every = steps_of_a_snapshot();
  AnonymousPeak anonymous;
  for (;;) {
    if (validates) {
      ZO_ASSIGN(goes_on, validate(options.validation, total_steps, options.part));
      if (!goes_on) {
        return stopped(total_steps);
      }
      (void)anonymous.take();  // exclude the evaluation from the next step's peak
    }
    if (records_.size() >= total_steps || (validates && evaluations_->ended())) {
      break;
    }
    const uint64_t number = records_.size();
    const auto report =
        take_step(dataset, batch(number, dataset.size()), scheduled(run_, number, total_steps), reference);
    if (!report.ok()) {
      return report.failure();
    }
    if (state_ && records_.size() % every == 0) {
      ZO_TRY(save());
    }
    const zo_progress progress{records_.size(),     total_steps,
                               report->output.loss, report->learning_rate,
                               report->seconds,     memory_usage().rss_bytes,
                               anonymous.take(),    told_notice_ || notice_.empty() ? nullptr : notice_.c_str()};
    told_notice_ = !notice_.empty();
    if (!options.go_on(progress)) {
      return stopped(total_steps);
    }
  }
  return state_ && steps ? save() : Status();
}

// --- Following records instead of running programs (zo_session_follow) -----------------------------------------------

Status Session::check_records(const std::vector<Record>& records, DivergenceGuard& guard) const {
  for (size_t i = 0; i < records.size(); ++i) {
    const Record& record = records[i];
    const auto number = records_.size() + i;
    if (number >= UINT32_MAX || record.step != number) {
      return refused(record, "the record of step " + std::to_string(record.step),
                     "that of step " + std::to_string(number));
    }
    if (!std::isfinite(record.loss)) {
      return refused(record, "a loss that is not finite", "finite numbers");
    }
    // The last learning rate of a schedule may be zero.
    if (!(std::isfinite(record.learning_rate) && record.learning_rate >= 0 && std::isfinite(record.eps) &&
          record.eps > 0)) {
      return refused(record,
                     "learning_rate " + std::to_string(record.learning_rate) + " and eps " + std::to_string(record.eps),
                     "a rate of at least 0 and a scale above 0");
    }
    const std::string bad = trainer_->out_of_range(record, run_.seed(), nullptr);
    if (!bad.empty()) {
      return refused(record, bad, "finite numbers, within the range of the slots' floats");
    }
    if (manifest_.grid && record.eps != static_cast<float>(manifest_.grid->eps)) {
      return refused(record, "eps " + std::to_string(record.eps), std::to_string(manifest_.grid->eps));
    }
    if (const auto divergence = guard.observe(record, trainer_->promised(record))) {
      return refused(record, divergence->found, divergence->expected);
    }
  }
  return {};
}

Status Session::follow(std::vector<Record> records) {
  if (!deferred()) {
    return Failure{ZO_INVALID_ARGUMENT, "records", "a bundle of the first-order method " + manifest_.method,
                   "one whose records tell how to repeat it", "Pass on the slots' values instead."};
  }
  DivergenceGuard guard = guard_;
  ZO_TRY(check_records(records, guard));
  ZO_TRY(prepare_step());
  const uint64_t every = steps_of_a_snapshot();
  for (Record& record : records) {
    const History last = pending();
    for (size_t slot = 0; !last.empty() && slot < slots_->size(); ++slot) {
      if (slots_->trainable(slot)) {
        ZO_TRY(trainer_->apply(last, run_.seed(), slots_->spec(slot), slots_->current(slot), slots_->next(slot)));
      }
    }
    if (state_) {
      ZO_TRY(state_->append(record));
    }
    if (!last.empty()) {
      slots_->copies().set_next_steps(records_.size());
      slots_->advance();
    }
    applied_ = records_.size();
    (void)guard_.observe(record, trainer_->promised(record));
    records_.push_back(std::move(record));
    if (state_ && records_.size() % every == 0) {
      ZO_TRY(save());
    }
  }
  return state_ && !records.empty() ? save() : Status();
}

}  // namespace zoexport
