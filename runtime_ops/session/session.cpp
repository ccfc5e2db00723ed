#include "session/session.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>

#include "rng/permutation.h"
#include "rng/philox.h"
#include "session/data/loss.h"
#include "session/manifest/needs.h"
#include "session/memory.h"
#include "session/state/slot_values.h"
#include "session/train/optimizer.h"

namespace zoexport {
namespace {

const char* const kAdapter = "adapter.safetensors";
constexpr uint8_t kNoInteger = 0x80;  // -128: no weight of INT8

Failure argument(const std::string& where, const std::string& found, const std::string& expected,
                 const std::string& fix) {
  return {ZO_INVALID_ARGUMENT, where, found, expected, fix};
}

std::string decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

void pass_values(const SlotSpec& spec, SlotForm form, const void* from, void* values) {
  if (form == SlotForm::kFloat32) {
    read_values(spec, from, static_cast<float*>(values));
  } else {
    std::memcpy(values, from, spec.bytes());
  }
}

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

Failure refused(const Record& record, const std::string& found, const std::string& expected) {
  return {ZO_INVALID_ARGUMENT, "record " + std::to_string(record.step), found, expected,
          "Pass the records that a session of this bundle made, in order and unchanged."};
}

}  // namespace

Result<std::unique_ptr<Session>> Session::open(const std::string& bundle, const OpenOptions& options) {
  ZO_ASSIGN(folder, open_bundle(bundle));
  ZO_ASSIGN(manifest, read_manifest(folder, options.trusted ? &*options.trusted : nullptr));
  const bool skip_hashes = options.skip_hashes && !options.trusted;
  std::unique_ptr<Session> session(new Session(std::move(folder), std::move(manifest), skip_hashes));
  const Manifest& known = session->manifest_;
  const BundleFiles& files = session->files_;
  if (known.rng != rng::kSpecId) {
    return Failure{ZO_BUNDLE_ERROR, join(bundle, "manifest.json"), "the noise specification " + known.rng, rng::kSpecId,
                   "Use the zoexport version that compiled this bundle, or compile it again."};
  }
  // Sizes now, hashes when a file is used: opening stays quick, and no altered file is ever run.
  ZO_TRY(files.check_sizes());
  if (options.trusted) {
    ZO_TRY(files.check_hosts(/*programs=*/options.engine.has_value()));
  }
  ZO_ASSIGN(adapter, files.open(kAdapter));
  const bool first_order = session->first_order();
  const uint32_t moments = first_order ? optimizer_moments(optimizer_from_text(known.optimizer)) : 0;
  ZO_ASSIGN(slots, Slots::load(known.slots, adapter, moments));
  session->slots_.emplace(std::move(slots));
  if (!session->in_file()) {
    session->slots_->hold(TwoCopies(session->slots_->copy_bytes()), /*keep=*/false);
  }
  if (options.engine) {
    session->engine_ = make_callback_engine(*options.engine);
  } else if (known.engine == "executorch") {
    ZO_ASSIGN(engine, make_executorch_engine(known, files, options.threads, options.packed, session->packed_));
    session->engine_ = std::move(engine);
  } else if (known.engine == "mlx") {
    ZO_ASSIGN(engine, load_mlx_engine(files));
    session->engine_ = std::move(engine);
  } else {
    return Failure{ZO_BUNDLE_ERROR, join(bundle, "manifest.json"), "the engine " + known.engine,
                   "executorch, mlx, or an engine that the host supplies",
                   "Compile the bundle for a target of this system."};
  }
  session->verify_programs_ = !options.engine;
  session->programs_ = std::make_unique<Programs>(known.programs, *session->engine_);
  session->weights_ = std::make_unique<FrozenWeights>(known, files);
  session->stages_ = std::make_unique<Stages>(known, *session->slots_, *session->programs_, *session->weights_,
                                              session->scratch_folder_);
  session->evaluator_ = std::make_unique<StageScorer>(*session->stages_);
  if (first_order) {
    ZO_ASSIGN(trainer, make_first_order(*session->stages_));
    session->trainer_ = std::move(trainer);
  } else {
    session->trainer_ = make_zeroth_order(*session->stages_);
  }
  if (known.settings.difference == ZO_DIFFERENCE_FORWARD && !session->trainer_->takes_forward_differences()) {
    return Failure{ZO_BUNDLE_ERROR, join(bundle, "manifest.json"), "difference forward of the method " + known.method,
                   "central, or a method that takes one copy through the model at a time", "Compile the bundle again."};
  }
  session->run_ = known.settings;
  return session;
}

template <typename Given>
Given Session::judged(Given given) {
  if (state_) {
    // A run that diverged leaves its last good state, also where that has no steps.
    state_->want(given.ok() || given.failure().code == ZO_DIVERGED);
  }
  return given;
}

Status Session::configure(const RunSettings& run) {
  Status checked = judged(check_settings(run));
  if (checked.ok()) {
    if (run.seed != run_.seed) {
      order_epoch_.reset();
    }
    run_ = run;
  }
  return checked;
}

Status Session::check_settings(const RunSettings& run) const {
  // All of them are used as float32, whose range is smaller.
  const auto finite = [](double value) { return std::fabs(value) <= std::numeric_limits<float>::max(); };
  const auto positive = [&](double value) { return finite(value) && static_cast<float>(value) > 0; };
  if (!positive(run.lr)) {
    return argument("lr", decimal(run.lr), "a number above 0, in the range of float32", "Pass another learning rate.");
  }
  if (!positive(run.eps)) {
    return argument("eps", decimal(run.eps), "a number above 0, in the range of float32",
                    "Pass another perturbation scale.");
  }
  if (manifest_.grid && static_cast<float>(run.eps) != static_cast<float>(manifest_.grid->eps)) {
    return argument("eps", std::to_string(run.eps),
                    std::to_string(manifest_.grid->eps) + ", which the bundle's roundings were made for",
                    "Leave it out, or compile the bundle with another one.");
  }
  const auto least_zero = [&](double value) { return finite(value) && value >= 0; };
  if (!least_zero(run.momentum) || run.momentum >= 1) {
    return argument("momentum", decimal(run.momentum), "a number from 0 to below 1", "Pass another momentum.");
  }
  if (!least_zero(run.weight_decay) || !least_zero(run.clip)) {
    return argument(least_zero(run.clip) ? "weight_decay" : "clip",
                    decimal(least_zero(run.clip) ? run.weight_decay : run.clip),
                    "a number of at least 0, in the range of float32", "Pass another one; 0 turns it off.");
  }
  if (deferred() && (run.momentum > 0 || run.weight_decay > 0 || run.clip > 0)) {
    return argument("momentum, weight_decay or clip", "a number above 0",
                    "0, as " + manifest_.method + " has no optimizer",
                    "Leave them out, or compile the bundle with a first-order method.");
  }
  if (run.checkpoint_every == 0) {
    return argument("checkpoint_every", "0", "at least 1", "Pass how many stages lie from one checkpoint to the next.");
  }
  if (run.batch == 0 || run.accumulate == 0) {
    return argument("batch", "0 examples for an update", "at least 1", "Pass a batch and accumulate of at least 1.");
  }
  ZO_TRY(check_batch(run, manifest_.seq_len));
  if (run.schedule < ZO_SCHEDULE_CONSTANT || run.schedule > ZO_SCHEDULE_COSINE) {
    return argument("lr_schedule", std::to_string(run.schedule), "constant, linear or cosine", "Pass one of them.");
  }
  if (run.loss != ZO_LOSS_FULL && run.loss != ZO_LOSS_CHOICES) {
    return argument("loss", std::to_string(run.loss), "full or choices", "Pass one of them.");
  }
  if (run.difference != ZO_DIFFERENCE_CENTRAL && run.difference != ZO_DIFFERENCE_FORWARD) {
    return argument("difference", std::to_string(run.difference), "central or forward", "Pass one of them.");
  }
  if (run.difference == ZO_DIFFERENCE_FORWARD && !trainer_->takes_forward_differences()) {
    return argument("difference", "forward, of the method " + manifest_.method,
                    "a method that takes one copy through the model at a time", "Use central differences.");
  }
  if ((state_ || !records_.empty()) && run.seed != run_.seed) {
    return Failure{ZO_STATE_ERROR, state_ ? state_->path() : "session", "a run with seed " + std::to_string(run_.seed),
                   "seed " + std::to_string(run.seed), "Leave the seed out to resume this run, or use another state."};
  }
  return {};
}

Result<size_t> Session::find_slot(const std::string& name) const {
  const size_t index = slots_->find(name);
  if (index == slots_->size()) {
    return argument("slot " + name, "no such slot", "a name listed under state in the manifest", "Correct the name.");
  }
  return index;
}

Result<size_t> Session::slot(const std::string& name, SlotForm form, size_t count) const {
  ZO_ASSIGN(index, find_slot(name));
  const SlotSpec& spec = slots_->spec(index);
  const bool floats = form == SlotForm::kFloat32;
  if (floats && spec.integers()) {
    return argument("slot " + name, std::string("a slot of ") + dtype_text(spec.dtype),
                    "float32 or float16, whose values pass as float32", "Use the call that passes a slot's bytes.");
  }
  const uint64_t expected = floats ? spec.elements : spec.bytes();
  if (count != expected) {
    return argument("slot " + name, std::to_string(count) + (floats ? " values" : " bytes"), std::to_string(expected),
                    "Pass an array of the slot's size.");
  }
  return index;
}

Status Session::read_slot(size_t slot, int32_t which, SlotForm form, void* values) {
  if (which == ZO_SLOT_GRADIENT) {
    const bool there = slots_->trainable(slot) && form == SlotForm::kFloat32;
    const float* gradient = there ? trainer_->gradient(slot) : nullptr;
    if (gradient == nullptr) {
      return argument("slot " + slots_->spec(slot).name, "no gradient",
                      "a trainable slot, after a step of a first-order method", "Read it after a step.");
    }
    std::memcpy(values, gradient, slots_->spec(slot).elements * sizeof(float));
    return {};
  }
  const SlotSpec& spec = slots_->spec(slot);
  const Record* record = pending();
  const bool finish = which == ZO_SLOT_FINISHED && record != nullptr && slots_->trainable(slot);
  if (finish) {
    // Between steps the next values are free.
    ZO_TRY(trainer_->apply(*record, run_.seed, spec, slots_->current(slot), slots_->next(slot)));
  }
  pass_values(spec, form, finish ? slots_->next(slot) : slots_->current(slot), values);
  return {};
}

Status Session::write_slot(size_t slot, SlotForm form, const void* values) {
  if (!records_.empty() || (state_ && !state_->writable())) {
    return argument("slot " + slots_->spec(slot).name,
                    records_.empty() ? "a state attached for reading" : "a run that has taken steps",
                    "a run that has not begun", "Import an adapter into a new state.");
  }
  ZO_ASSIGN(written, slot_bytes(slot, form, values));
  kept_.reset();
  ZO_TRY(make_room());
  slots_->set(slot, written.data());
  // A slot that is written again has one replacement still, however often.
  auto place = std::find_if(written_.begin(), written_.end(), [&](const auto& entry) { return entry.first == slot; });
  if (place == written_.end()) {
    place = written_.insert(place, {slot, {}});
  }
  place->second = std::move(written);
  initial_changed_ = true;
  return {};
}

Result<std::vector<uint8_t>> Session::slot_bytes(size_t slot, SlotForm form, const void* values) const {
  const SlotSpec& spec = slots_->spec(slot);
  const auto* bytes = static_cast<const uint8_t*>(values);
  if (spec.dtype == ZO_INT8 && std::find(bytes, bytes + spec.bytes(), kNoInteger) != bytes + spec.bytes()) {
    return argument("slot " + spec.name, "the value -128", "values from -127 to 127", "Round to those.");
  }
  std::vector<uint8_t> written(bytes, bytes + (form == SlotForm::kBytes ? spec.bytes() : 0));
  if (form == SlotForm::kFloat32) {
    written.resize(spec.bytes());
    write_values(spec, static_cast<const float*>(values), written.data());
  }
  if (!all_finite(spec, written.data())) {
    return argument("slot " + spec.name, "a value that is not finite in " + std::string(dtype_text(spec.dtype)),
                    "finite values", "Import an adapter without NaN and infinity.");
  }
  return written;
}

Status Session::replay_slot(size_t slot, uint64_t updates, SlotForm form, void* values) {
  if (!deferred()) {
    return argument("slot " + slots_->spec(slot).name, "a run of the first-order method " + manifest_.method,
                    "one whose records tell how to repeat it", "Read the slot, or a snapshot of the state.");
  }
  if (updates > records_.size()) {
    return argument("updates", std::to_string(updates),
                    "at most the " + std::to_string(records_.size()) + " of the run", "Pass a smaller number.");
  }
  const SlotSpec& spec = slots_->spec(slot);
  const void* initial = slots_->bundled(slot);
  std::optional<SafeTensors> imported;
  if (state_ && exists(state_->initial_path())) {
    ZO_ASSIGN(file, state_->read_initial());
    imported.emplace(std::move(file));
    ZO_ASSIGN(found, slot_values(*imported, spec.name, spec, state_->initial_path(), ZO_STATE_ERROR));
    initial = found;
  }
  for (const auto& [written, replacement] : written_) {
    initial = written == slot ? replacement.data() : initial;
  }
  if (!slots_->trainable(slot) || updates == 0) {
    pass_values(spec, form, initial, values);
    return {};
  }
  void* room = slots_->next(slot);  // free between steps
  std::memcpy(room, initial, spec.bytes());
  for (uint64_t i = 0; i < updates; ++i) {
    ZO_TRY(trainer_->apply(records_[i], run_.seed, spec, room, room));
  }
  pass_values(spec, form, room, values);
  return {};
}

// --- Steps, training and evaluation -------------------------------------------------------------------------------------

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
  forget();  // training's memory is that of training
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
  ZO_ASSIGN(layout, lay_out(dataset, indices.data(), indices.size(), run_.loss == ZO_LOSS_CHOICES, trainer_->limits()));
  const StepInput input{run_, number, static_cast<float>(lr), pending()};
  StepReport report;
  ZO_ASSIGN(output, trainer_->step(input, layout, *slots_));
  ZO_TRY(Faults::current()->check());  // before the step counts
  report.output = std::move(output);
  report.step = number;
  report.lr = lr;

  const auto loss = static_cast<float>(report.output.loss);
  // Decided on a copy: a step whose record cannot be written has not happened.
  DivergenceGuard guard = guard_;
  Record record{number, input.lr, static_cast<float>(run_.eps), loss, report.output.gradients};
  std::string bad = report.output.not_finite;
  bad = bad.empty() && std::isfinite(loss) ? trainer_->out_of_range(record, run_.seed, &*slots_) : bad;
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
  // Only now: until the record is in the log, the state is the one before the step.
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
  return Failure{
      ZO_DIVERGED, "step " + step, divergence.found, divergence.expected,
      "Lower lr (it is " + decimal(run_.lr) + (state_ && !records_.empty() ? "; --change-settings takes another" : "") +
          "). The state is back at " + std::to_string(records_.size()) + " steps, before the run left its range."};
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
  // The host chooses the examples of each step: no set of them is the run's.
  ZO_TRY(begin_run(run_.total_steps, nullptr));
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
  return judged(train_on(dataset, total_steps, go_on));
}

Status Session::train_on(const Dataset& dataset, uint64_t total_steps,
                         const std::function<bool(const zo_progress&)>& go_on) {
  ZO_TRY(check_dataset(dataset, run_.loss == ZO_LOSS_CHOICES));
  // The manifest's own settings were configured by nobody.
  ZO_TRY(check_batch(run_, manifest_.seq_len));
  if (records_.size() >= total_steps) {
    return check_run(dataset);
  }
  ZO_TRY(begin_run(total_steps, &dataset));
  const uint64_t every = steps_of_a_snapshot();
  AnonymousPeak anonymous;
  while (records_.size() < total_steps) {
    const uint64_t number = records_.size();
    const auto report = take_step(dataset, batch(number, dataset.size()), scheduled(run_, number, total_steps));
    if (!report.ok()) {
      return report.failure();
    }
    if (state_ && records_.size() % every == 0) {
      ZO_TRY(save());
    }
    const zo_progress progress{sizeof(zo_progress),      records_.size(), total_steps,
                               report->output.loss,      report->lr,      report->seconds,
                               memory_usage().rss_bytes, anonymous.take()};
    if (!go_on(progress)) {
      if (state_) {
        ZO_TRY(save());
      }
      return Failure{
          ZO_CANCELLED, "step " + std::to_string(records_.size()) + " of " + std::to_string(total_steps),
          "a request to stop", "the run to go on",
          state_ ? "Train again with the same state to continue." : "Attach a state folder to resume a run."};
    }
  }
  return state_ ? save() : Status();
}

Result<StateValues> Session::finished() {
  const Record* record = pending();
  for (size_t i = 0; record != nullptr && i < slots_->size(); ++i) {
    if (slots_->trainable(i)) {
      ZO_TRY(trainer_->apply(*record, run_.seed, slots_->spec(i), slots_->current(i), slots_->next(i)));
    }
  }
  const bool next = record != nullptr;
  return StateValues([this, next](size_t slot) -> const void* {
    return next && slots_->trainable(slot) ? slots_->next(slot) : slots_->current(slot);
  });
}

Result<zo_evaluation> Session::evaluate(const Dataset& dataset, const GoOn& go_on) {
  ZO_TRY(check_dataset(dataset, run_.loss == ZO_LOSS_CHOICES));
  ZO_ASSIGN(state, finished());
  double loss = 0;
  uint64_t with_choices = 0, right = 0, labels = 0, argmax = 0;
  std::vector<uint64_t> indices(dataset.size());
  std::iota(indices.begin(), indices.end(), 0);
  for (size_t begin = 0; begin < indices.size(); begin += kEvaluationGroup) {
    const size_t count = std::min(kEvaluationGroup, indices.size() - begin);
    ZO_ASSIGN(layout, lay_out(dataset, &indices[begin], count, /*all_candidates=*/true, evaluator_->limits()));
    std::vector<bool> is_right(layout.labels.size(), false);
    for (const Layout::Example& example : layout.examples) {
      is_right[example.first + example.target] = true;
    }
    CandidateScores scores(layout);
    for (size_t done = 0; done < layout.calls.size(); ++done) {
      if (!go_on(begin + count * done / layout.calls.size(), indices.size())) {
        return Failure{ZO_CANCELLED, "the evaluation", "a request to stop", "all examples to be evaluated",
                       "Evaluate again."};
      }
      const Call& call = layout.calls[done];
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

// --- Going on by records instead of programs (zo_session_follow) ---------------------------------------------------------

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
    // A schedule's last rate may be zero.
    if (!(std::isfinite(record.lr) && record.lr >= 0 && std::isfinite(record.eps) && record.eps > 0)) {
      return refused(record, "lr " + std::to_string(record.lr) + " and eps " + std::to_string(record.eps),
                     "a rate of at least 0 and a scale above 0");
    }
    const std::string bad = trainer_->out_of_range(record, run_.seed, nullptr);
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
    if (const Record* last = pending()) {
      for (size_t slot = 0; slot < slots_->size(); ++slot) {
        if (slots_->trainable(slot)) {
          ZO_TRY(trainer_->apply(*last, run_.seed, slots_->spec(slot), slots_->current(slot), slots_->next(slot)));
        }
      }
    }
    if (state_) {
      ZO_TRY(state_->append(record));
    }
    if (pending() != nullptr) {
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
