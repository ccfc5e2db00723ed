#include "session/session.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "rng/philox.h"
#include "session/optimizer.h"
#include "session/program_runner.h"
#include "session/slot_values.h"
#include "session/split_scorer.h"

namespace zoexport {
namespace {

const char* const kAdapter = "adapter.safetensors";
constexpr uint8_t kNoInteger = 0x80;  // -128: no weight of INT8

Failure argument(const std::string& where, const std::string& found, const std::string& expected,
                 const std::string& fix) {
  return {ZO_INVALID_ARGUMENT, where, found, expected, fix};
}

void pass_values(const SlotSpec& spec, SlotForm form, const void* from, void* values) {
  if (form == SlotForm::kFloat32) {
    read_values(spec, from, static_cast<float*>(values));
  } else {
    std::memcpy(values, from, spec.bytes());
  }
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
  const bool first_order = session->first_order();
  const uint32_t moments = first_order ? optimizer_moments(optimizer_from_text(known.optimizer)) : 0;
  ZO_ASSIGN(slots, Slots::load(known.slots, join(bundle, kAdapter), moments));
  session->slots_.emplace(std::move(slots));
  if (!session->in_file()) {
    session->slots_->hold(TwoCopies(session->slots_->copy_bytes()), /*keep=*/false);
  }
  if (options.engine) {
    session->engine_ = make_callback_engine(*options.engine);
  } else if (known.engine == "executorch") {
    ZO_ASSIGN(engine, make_executorch_engine(known, bundle, options.threads, options.packed, session->packed_));
    session->engine_ = std::move(engine);
  } else if (known.engine == "mlx") {
    ZO_ASSIGN(engine, load_mlx_engine(bundle));
    session->engine_ = std::move(engine);
  } else {
    return Failure{ZO_BUNDLE_ERROR, join(bundle, "manifest.json"), "the engine " + known.engine,
                   "executorch, mlx, or an engine that the host supplies",
                   "Compile the bundle for a target of this system."};
  }
  std::function<Status(const ProgramSpec&)> prepare;
  if (!options.engine) {
    prepare = [raw = session.get()](const ProgramSpec& program) { return raw->verify(program.file); };
  }
  session->programs_ = std::make_unique<Programs>(known, *session->engine_, std::move(prepare));
  session->weights_ = std::make_unique<FrozenWeights>(
      known, bundle, [raw = session.get()](const std::string& file) { return raw->verify(file); });
  if (known.split()) {
    session->stages_ = std::make_unique<Stages>(known, *session->slots_, *session->programs_, *session->weights_,
                                                session->scratch_folder_);
    session->evaluator_ = std::make_unique<SplitScorer>(*session->stages_);
  } else {
    ZO_ASSIGN(evaluator, ProgramRunner::create(known, "evaluate", *session->programs_, *session->weights_));
    if (evaluator.copies() != 1 || evaluator.spec().output("label_is_argmax") == nullptr) {
      return Failure{ZO_BUNDLE_ERROR, "manifest.json, program evaluate", "other outputs",
                     "label_logprobs (1, M) and label_is_argmax (1, M)", "Compile the bundle again."};
    }
    session->evaluator_ = std::make_unique<ProgramRunner>(std::move(evaluator));
  }
  ZO_ASSIGN(trainer, first_order ? make_first_order(known, *session->stages_)
                                 : make_zeroth_order(known, session->stages_.get(), *session->programs_,
                                                     *session->weights_));
  session->trainer_ = std::move(trainer);
  if (known.settings.difference == ZO_DIFFERENCE_FORWARD && !session->trainer_->takes_forward_differences()) {
    return Failure{ZO_BUNDLE_ERROR, join(bundle, "manifest.json"), "difference forward of the method " + known.method,
                   "central, or a method that takes one copy through the model at a time", "Compile the bundle again."};
  }
  session->run_ = known.settings;
  return session;
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
  const Status restored = resume();
  if (!restored.ok()) {
    state_.reset();
    records_.clear();
    applied_ = 0;
    scratch_folder_.clear();
    if (in_file()) {
      slots_->let_go();
    }
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
  if (manifest_.grid && static_cast<float>(run.eps) != static_cast<float>(manifest_.grid->eps)) {
    return argument("eps", std::to_string(run.eps),
                    std::to_string(manifest_.grid->eps) + ", which the bundle's roundings were made for",
                    "Leave it out, or compile the bundle with another one.");
  }
  const auto least_zero = [](double value) { return std::isfinite(value) && value >= 0; };
  if (!least_zero(run.momentum) || run.momentum >= 1) {
    return argument("momentum", std::to_string(run.momentum), "a number from 0 to below 1", "Pass another momentum.");
  }
  if (!least_zero(run.weight_decay) || !least_zero(run.clip)) {
    return argument(least_zero(run.clip) ? "weight_decay" : "clip",
                    std::to_string(least_zero(run.clip) ? run.weight_decay : run.clip), "a number of at least 0",
                    "Pass another one; 0 turns it off.");
  }
  if (deferred() && (run.momentum > 0 || run.weight_decay > 0 || run.clip > 0)) {
    return argument("momentum, weight_decay or clip", "a number above 0", "0, as " + manifest_.method + " has no optimizer",
                    "Leave them out, or compile the bundle with a first-order method.");
  }
  if (run.checkpoint_every == 0) {
    return argument("checkpoint_every", "0", "at least 1", "Pass how many stages lie from one checkpoint to the next.");
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
  if (run.seed != run_.seed) {
    order_epoch_.reset();
  }
  run_ = run;
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
  const SlotSpec& spec = slots_->spec(slot);
  const auto* bytes = static_cast<const uint8_t*>(values);
  if (spec.dtype == ZO_INT8 && std::find(bytes, bytes + spec.bytes(), kNoInteger) != bytes + spec.bytes()) {
    return argument("slot " + spec.name, "the value -128", "values from -127 to 127", "Round to those.");
  }
  ZO_TRY(make_room());
  // A slot that is written again has one replacement still, however often.
  auto place = std::find_if(written_.begin(), written_.end(), [&](const auto& entry) { return entry.first == slot; });
  if (place == written_.end()) {
    place = written_.insert(place, {slot, std::vector<uint8_t>(spec.bytes())});
  }
  auto& [index, written] = *place;
  if (form == SlotForm::kFloat32) {
    write_values(spec, static_cast<const float*>(values), written.data());
  } else {
    std::memcpy(written.data(), values, spec.bytes());
  }
  slots_->set(index, written.data());
  initial_changed_ = true;
  return {};
}

Status Session::write_initial_if_changed() {
  if (initial_changed_ && state_ && state_->writable()) {
    ZO_TRY(state_->write_initial(slots_->to_write(SlotKind::kAll)));
    initial_changed_ = false;
    written_.clear();
  }
  return {};
}

Status Session::replay_slot(size_t slot, uint64_t updates, SlotForm form, void* values) {
  if (!deferred()) {
    return argument("slot " + slots_->spec(slot).name, "a run of the first-order method " + manifest_.method,
                    "one whose records tell how to repeat it", "Read the slot, or a snapshot of the state.");
  }
  if (updates > records_.size()) {
    return argument("updates", std::to_string(updates), "at most the " + std::to_string(records_.size()) + " of the run",
                    "Pass a smaller number.");
  }
  const SlotSpec& spec = slots_->spec(slot);
  const void* initial = slots_->bundled(slot);
  std::optional<SafeTensors> imported;
  if (state_ && exists(state_->initial_path())) {
    ZO_ASSIGN(file, SafeTensors::open(state_->initial_path(), ZO_STATE_ERROR));
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

Status Session::save() {
  if (!state_ || !state_->writable()) {
    return Failure{ZO_STATE_ERROR, state_ ? state_->path() : "session",
                   state_ ? "a state attached for reading" : "no state folder", "a state attached for training",
                   "Attach a state folder before training."};
  }
  ZO_TRY(write_initial_if_changed());
  ZO_TRY(state_->log().sync());
  if (applied_ > 0 && snapshot_ != applied_) {
    ZO_TRY(state_->write_snapshot(applied_, slots_->to_write(SlotKind::kTrainable)));
    snapshot_ = applied_;
  }
  return {};
}

}  // namespace zoexport
