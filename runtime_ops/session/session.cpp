#include "session/session.h"

#include <chrono>
#include <cmath>
#include <cstring>

#include "rng/philox.h"

namespace zoexport {
namespace {

const char* const kAdapter = "adapter.safetensors";

Failure argument(const std::string& where, const std::string& found, const std::string& expected,
                 const std::string& fix) {
  return {ZO_INVALID_ARGUMENT, where, found, expected, fix};
}

}  // namespace

Result<std::unique_ptr<Session>> Session::open(const std::string& bundle, const OpenOptions& options) {
  ZO_ASSIGN(manifest, read_manifest(bundle));
  std::unique_ptr<Session> session(new Session(bundle, std::move(manifest)));
  const Manifest& known = session->manifest_;
  if (known.rng != rng::kSpecId) {
    return Failure{ZO_BUNDLE_ERROR, join(bundle, "manifest.json"), "the noise specification " + known.rng,
                   rng::kSpecId, "Use the zoexport version that compiled this bundle, or compile it again."};
  }
  // Sizes now, hashes before a file is used: opening stays quick, and no altered file is ever run.
  for (const auto& file : known.files) {
    ZO_TRY(verify_file(known, bundle, file.first, /*skip_hash=*/true));
  }
  session->skip_hashes_ = options.skip_hashes;
  ZO_TRY(session->verify(kAdapter));
  ZO_ASSIGN(slots, Slots::load(known.slots, join(bundle, kAdapter)));
  session->slots_.emplace(std::move(slots));
  if (options.engine) {
    session->engine_ = make_callback_engine(*options.engine);
  } else if (known.engine == "executorch") {
    ZO_ASSIGN(engine, make_executorch_engine(known, bundle, options.threads, options.packed, session->packed_));
    session->engine_ = std::move(engine);
  } else {
    return Failure{ZO_BUNDLE_ERROR, join(bundle, "manifest.json"), "the engine " + known.engine,
                   "executorch, or an engine that the host supplies", "Compile the bundle for a target of this system."};
  }
  std::function<Status(const ProgramSpec&)> prepare;
  if (!options.engine) {
    prepare = [raw = session.get()](const ProgramSpec& program) { return raw->verify(program.file); };
  }
  ZO_ASSIGN(train, ProgramRunner::create(known, "train", *session->engine_, prepare));
  ZO_ASSIGN(evaluator, ProgramRunner::create(known, "evaluate", *session->engine_, prepare));
  if (evaluator.copies() != 1 || evaluator.spec().output("label_is_argmax") == nullptr) {
    return Failure{ZO_BUNDLE_ERROR, "manifest.json, program evaluate", "other outputs",
                   "label_logprobs (1, M) and label_is_argmax (1, M)", "Compile the bundle again."};
  }
  session->evaluator_.emplace(std::move(evaluator));
  ZO_ASSIGN(trainer, make_trainer(known, std::move(train)));
  session->trainer_ = std::move(trainer);
  session->run_ = known.settings;
  return session;
}

std::vector<const ProgramRunner*> Session::programs() const {
  std::vector<const ProgramRunner*> all = trainer_->programs();
  all.push_back(&*evaluator_);
  return all;
}

Status Session::verify(const std::string& file) {
  if (verified_.count(file) == 0) {
    ZO_TRY(verify_file(manifest_, bundle_, file, skip_hashes_));
    verified_.insert(file);
  }
  return {};
}

Status Session::attach(const std::string& folder, int32_t mode, const uint64_t* seed) {
  if (mode != ZO_STATE_READ && mode != ZO_STATE_TRAIN) {
    return argument("mode", std::to_string(mode), "ZO_STATE_READ or ZO_STATE_TRAIN", "Pass one of them.");
  }
  if (state_ || !records_.empty() || !written_.empty()) {
    return argument("state " + folder, "a session that has a state, steps or written slots", "a fresh session",
                    "Attach the state right after opening the bundle.");
  }
  ZO_ASSIGN(opened, StateFolder::attach(folder, mode, seed, manifest_, queries()));
  state_.emplace(std::move(opened.folder));
  records_ = std::move(opened.records);
  run_.seed = opened.seed;
  const Status restored = restore(records_.empty() ? 0 : records_.size() - 1);
  if (!restored.ok()) {
    state_.reset();
    records_.clear();
    run_.seed = manifest_.settings.seed;
    return restored;
  }
  watch_again();
  return {};
}

Status Session::configure(const RunSettings& run) {
  const auto positive = [](double value) { return std::isfinite(value) && value > 0 && static_cast<float>(value) > 0; };
  if (!positive(run.lr)) {
    return argument("lr", std::to_string(run.lr), "a number above 0", "Pass another learning rate.");
  }
  if (!positive(run.eps)) {
    return argument("eps", std::to_string(run.eps), "a number above 0", "Pass another perturbation scale.");
  }
  if (run.batch == 0 || run.accumulate == 0) {
    return argument("batch", "0 examples for an update", "at least 1", "Pass a batch and accumulate of at least 1.");
  }
  if (run.schedule < ZO_SCHEDULE_CONSTANT || run.schedule > ZO_SCHEDULE_COSINE) {
    return argument("lr_schedule", std::to_string(run.schedule), "constant, linear or cosine", "Pass one of them.");
  }
  if (run.loss != ZO_LOSS_FULL && run.loss != ZO_LOSS_CHOICES) {
    return argument("loss", std::to_string(run.loss), "full or choices", "Pass one of them.");
  }
  if ((state_ || !records_.empty()) && run.seed != run_.seed) {
    return Failure{ZO_STATE_ERROR, state_ ? state_->path() : "session", "a run with seed " + std::to_string(run_.seed),
                   "seed " + std::to_string(run.seed), "Leave the seed out to resume this run, or use another state."};
  }
  if (run.seed != run_.seed) {
    order_epoch_.reset();
  }
  run_ = run;
  return {};
}

Status Session::restore_initial() {
  for (size_t i = 0; i < slots_->size(); ++i) {
    if (slots_->current(i) != slots_->bundled(i)) {
      slots_->set(i, slots_->bundled(i));
    }
  }
  if (state_ && exists(state_->initial_path())) {
    ZO_ASSIGN(file, SafeTensors::open(state_->initial_path(), ZO_STATE_ERROR));
    if (file.metadata("crc32") != crc_text(file.data_crc())) {
      return Failure{ZO_STATE_ERROR, state_->initial_path(), "damaged values", "the values of an imported adapter",
                     "Restore the state from a copy, or import the adapter again into another state."};
    }
    ZO_TRY(slots_->set_from(file, /*trainable_only=*/false, state_->initial_path()));
  }
  for (const auto& [slot, values] : written_) {
    slots_->set(slot, values.data());
  }
  return {};
}

Status Session::restore(uint64_t updates) {
  ZO_TRY(restore_initial());
  applied_ = 0;
  snapshot_.reset();
  for (uint64_t steps : state_ ? state_->snapshots() : std::vector<uint64_t>()) {
    // One of `updates + 1` updates serves too where that is all records: then nothing is pending.
    if (steps > updates && steps != records_.size()) {
      continue;
    }
    const auto file = state_->read_snapshot(steps);
    // A damaged snapshot only costs time: an older one, or the initial values, serve as well.
    if (file.ok() && slots_->set_from(*file, /*trainable_only=*/true, state_->path()).ok()) {
      applied_ = steps;
      snapshot_ = steps;
      break;
    }
  }
  return applied_ < updates ? replay(applied_, updates) : Status();
}

Status Session::replay(uint64_t from, uint64_t to) {
  for (uint64_t i = from; i < to; ++i) {
    for (size_t slot = 0; slot < slots_->size(); ++slot) {
      if (slots_->trainable(slot)) {
        ZO_TRY(trainer_->apply(records_[i], run_.seed, slots_->spec(slot), slots_->current(slot),
                               slots_->mutable_current(slot)));
      }
    }
  }
  applied_ = to;
  return {};
}

Result<size_t> Session::find_slot(const std::string& name) const {
  const size_t index = slots_->find(name);
  if (index == slots_->size()) {
    return argument("slot " + name, "no such slot", "a name listed under state in the manifest", "Correct the name.");
  }
  return index;
}

Result<size_t> Session::slot(const std::string& name, size_t elements) const {
  ZO_ASSIGN(index, find_slot(name));
  const uint64_t expected = slots_->spec(index).elements;
  if (elements != expected) {
    return argument("slot " + name, std::to_string(elements) + " values", std::to_string(expected),
                    "Pass an array of the slot's size.");
  }
  return index;
}

Status Session::read_slot(size_t slot, bool finished, float* values) {
  const Record* record = pending();
  if (finished && record != nullptr && slots_->trainable(slot)) {
    return trainer_->apply(*record, run_.seed, slots_->spec(slot), slots_->current(slot), values);
  }
  std::memcpy(values, slots_->current(slot), slots_->spec(slot).elements * sizeof(float));
  return {};
}

Status Session::write_slot(size_t slot, const float* values) {
  if (!records_.empty() || (state_ && !state_->writable())) {
    return argument("slot " + slots_->spec(slot).name,
                    records_.empty() ? "a state attached for reading" : "a run that has taken steps",
                    "a run that has not begun", "Import an adapter into a new state.");
  }
  written_.emplace_back(slot, std::vector<float>(values, values + slots_->spec(slot).elements));
  slots_->set(slot, values);
  initial_changed_ = true;
  return {};
}

Status Session::write_initial_if_changed() {
  if (initial_changed_ && state_ && state_->writable()) {
    ZO_TRY(state_->write_initial(slots_->to_write(/*trainable_only=*/false)));
    initial_changed_ = false;
    written_.clear();
  }
  return {};
}

Status Session::replay_slot(size_t slot, uint64_t updates, float* values) {
  if (updates > records_.size()) {
    return argument("updates", std::to_string(updates), "at most the " + std::to_string(records_.size()) + " of the run",
                    "Pass a smaller number.");
  }
  const SlotSpec& spec = slots_->spec(slot);
  const float* initial = slots_->bundled(slot);
  std::optional<SafeTensors> imported;
  if (state_ && exists(state_->initial_path())) {
    ZO_ASSIGN(file, SafeTensors::open(state_->initial_path(), ZO_STATE_ERROR));
    imported.emplace(std::move(file));
    ZO_ASSIGN(found, slot_values(*imported, spec, state_->initial_path(), ZO_STATE_ERROR));
    initial = found;
  }
  for (const auto& [written, replacement] : written_) {
    initial = written == slot ? replacement.data() : initial;
  }
  std::memcpy(values, initial, spec.elements * sizeof(float));
  for (uint64_t i = 0; slots_->trainable(slot) && i < updates; ++i) {
    ZO_TRY(trainer_->apply(records_[i], run_.seed, spec, values, values));
  }
  return {};
}

Status Session::save() {
  if (!state_ || !state_->writable()) {
    return Failure{ZO_STATE_ERROR, state_ ? state_->path() : "session",
                   state_ ? "a state attached for reading" : "no state folder", "a state attached for training",
                   "Attach a state folder before training."};
  }
  ZO_TRY(write_initial_if_changed());
  ZO_TRY(state_->log().sync());
  if (applied_ > 0 && snapshot_ != applied_) {
    ZO_TRY(state_->write_snapshot(applied_, slots_->to_write(/*trainable_only=*/true)));
    snapshot_ = applied_;
  }
  return {};
}

}  // namespace zoexport
