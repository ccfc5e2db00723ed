#include "session/session.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "rng/philox.h"
#include "session/decimal.h"
#include "session/manifest/needs.h"
#include "session/state/slot_values.h"
#include "session/train/optimizer.h"

namespace zoexport {
namespace {

const char* const kAdapter = "adapter.safetensors";
constexpr uint8_t kNoInteger = 0x80;  // -128: not a valid INT8 weight

Failure argument(const std::string& where, const std::string& found, const std::string& expected,
                 const std::string& fix) {
  return {ZO_INVALID_ARGUMENT, where, found, expected, fix};
}

// Select the requested engine's programs in the manifest.
Status choose_engine(Manifest& manifest, const std::string& name) {
  if (name.empty()) {
    return {};
  }
  std::string known = manifest.engine;
  while (name != manifest.engine) {
    if (!manifest.fallback) {
      return Failure{ZO_INVALID_ARGUMENT, "engine", name, known + ", whose programs the bundle has",
                     "Choose one of these, or none."};
    }
    const std::string before = manifest.engine;
    manifest = Manifest(*manifest.fallback);  // a copy first: the manifest owns it
    known += before == manifest.engine ? "" : " or " + manifest.engine;
  }
  return {};
}

// Copy values in the C ABI's format: float32 for floating-point slots, else the slot's own dtype.
void pass_values(const SlotSpec& spec, const void* from, void* values) {
  if (spec.integers()) {
    std::memcpy(values, from, spec.bytes());
  } else {
    read_values(spec, from, static_cast<float*>(values));
  }
}

}  // namespace

Result<std::unique_ptr<Session>> Session::open(const std::string& bundle, const OpenOptions& options) {
  ZO_ASSIGN(folder, open_bundle(bundle));
  ZO_ASSIGN(manifest, read_manifest(folder, options.trusted ? &*options.trusted : nullptr));
  const std::string own_engine = manifest.engine;
  ZO_TRY(choose_engine(manifest, options.engine_name));
  std::unique_ptr<Session> session(new Session(std::move(folder), std::move(manifest), options));
  session->own_engine_ = own_engine;
  const Manifest& known = session->manifest_;
  const BundleFiles& files = session->files_;
  if (known.rng != rng::kSpecId) {
    return Failure{ZO_BUNDLE_ERROR, join(bundle, "manifest.json"), "the noise specification " + known.rng, rng::kSpecId,
                   "Use the zoexport version that compiled this bundle, or compile it again."};
  }
  // Check sizes now and hashes when a file is used: opening stays quick, and a modified file never runs.
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
  session->run_ = known.settings;
  if (auto engine = session->make_engine(known); engine.ok()) {
    ZO_TRY(session->run_on(std::move(*engine)));
  } else {
    ZO_TRY(session->fall_back(engine.failure()));
  }
  return session;
}

Result<std::unique_ptr<Engine>> Session::make_engine(const Manifest& manifest) const {
  if (!options_.engine) {
    ZO_TRY(check_backends(manifest, files_));
  }
  return make_engine(manifest.engine);
}

Result<std::unique_ptr<Engine>> Session::make_engine(const std::string& name) const {
  if (options_.engine) {
    return make_callback_engine(*options_.engine);
  }
  return name == "executorch" || name == "qnn" ? make_executorch_engine(manifest_, files_, options_.threads)
         : name == "mlx"                       ? load_mlx_engine(files_)
         : name == "vulkan" ? make_vulkan_engine(manifest_, files_, options_.cache, options_.kernel_times)
                            : Failure{ZO_BUNDLE_ERROR, join(files_.path(), "manifest.json"), "the engine " + name,
                                      "executorch, qnn, mlx, vulkan, or an engine that the host supplies",
                                      "Compile the bundle for a target of this system."};
}

Status Session::run_on(std::unique_ptr<Engine> engine) {
  engine_ = std::move(engine);
  programs_ = std::make_unique<Programs>(manifest_.programs, *engine_);
  weights_ = std::make_unique<FrozenWeights>(manifest_, files_);
  stages_ = std::make_unique<Stages>(manifest_, *slots_, *programs_, *weights_, scratch_folder_);
  evaluator_ = std::make_unique<StageScorer>(*stages_);
  if (first_order()) {
    ZO_ASSIGN(trainer, make_first_order(*stages_));
    trainer_ = std::move(trainer);
  } else {
    trainer_ = make_zeroth_order(*stages_);
  }
  stages_->prefix().keep(in_bytes(run_.count("hidden_state_cache_mb")));
  return {};
}

Status Session::fall_back(const Failure& failure) {
  if (options_.engine || failure.code != ZO_ENGINE_ERROR) {
    return failure;
  }
  Failure last = failure;
  for (std::shared_ptr<const Manifest> next = manifest_.fallback; next != nullptr; next = next->fallback) {
    if (!options_.engine_name.empty() && options_.engine_name != next->engine) {
      break;
    }
    auto engine = make_engine(*next);
    if (engine.ok()) {
      return switch_to(*next, std::move(*engine), failure);
    }
    last = engine.failure();
  }
  return last;
}

Status Session::switch_to(const Manifest& other, std::unique_ptr<Engine> engine, const Failure& failure) {
  if (other.engine != manifest_.engine) {  // else these are programs for another chip
    notice_ = "Engine " + manifest_.engine + " failed (" + failure.where + ": " + failure.found + "). Engine " +
              other.engine + " runs the programs instead.";
  }
  // Each object here refers to the objects reset after it, and to the manifest's programs.
  forget();
  generating_.reset();
  generating_engine_.reset();
  trainer_.reset();
  evaluator_.reset();
  stages_.reset();
  weights_.reset();
  programs_.reset();
  engine_.reset();
  manifest_ = Manifest(other);
  ZO_TRY(run_on(std::move(engine)));
  if (recorded_ && state_ && state_->writable()) {
    note_engine(*recorded_);
    return state_->write_run(*recorded_);
  }
  return {};
}

Status Session::configure(const nlohmann::json& settings) {
  RunSettings run = run_;
  Status checked = run.change(settings);
  checked = judged(checked.ok() ? check_settings(run) : checked);
  if (checked.ok()) {
    if (run.seed() != run_.seed()) {
      order_epoch_.reset();
    }
    run_ = std::move(run);
    stages_->prefix().keep(in_bytes(run_.count("hidden_state_cache_mb")));
  }
  return checked;
}

Status Session::check_settings(const RunSettings& run) const {
  const double eps = run.number("eps");
  if (manifest_.grid && static_cast<float>(eps) != static_cast<float>(manifest_.grid->eps)) {
    return argument("setting 'eps'", std::to_string(eps),
                    std::to_string(manifest_.grid->eps) + ", which the bundle's roundings were made for",
                    "Leave it out, or compile the bundle with another one.");
  }
  for (const char* const key : {"momentum", "weight_decay", "max_grad_norm"}) {
    if (deferred() && run.has(key) && run.number(key) > 0) {
      return argument(std::string("setting '") + key + "'", decimal(run.number(key)),
                      "0, as " + manifest_.method + " has no optimizer",
                      "Leave it out, or compile the bundle with a first-order method.");
    }
  }
  const auto& stages = manifest_.stages;
  const uint64_t activation_cache_mb = run.whole("activation_cache_mb");
  if (activation_cache_mb > 0 && activation_cache_mb != manifest_.settings.whole("activation_cache_mb") &&
      std::none_of(stages.begin(), stages.end(), [](const StageSpec& s) { return !s.saving.empty(); })) {
    return argument("setting 'activation_cache_mb'", std::to_string(activation_cache_mb),
                    "0, as this bundle has no programs that save results",
                    "Compile it for the target host or android-cpu with --set activation_cache_mb=" +
                        std::to_string(activation_cache_mb) + ".");
  }
  const uint64_t cached = run.whole("hidden_state_cache_mb");
  if (cached > 0 && cached != manifest_.settings.whole("hidden_state_cache_mb") && stages_->prefix().end() == 0) {
    return argument("setting 'hidden_state_cache_mb'", std::to_string(cached),
                    "0, as no layer lies below the first that is trained, or the bundle is not of single layers",
                    "Leave it out, or compile with lora.layers_to_transform=last:K and granularity=layer.");
  }
  ZO_TRY(check_batch(run, manifest_.max_length));
  ZO_TRY(check_pack(run.packs(), manifest_.pad_token.has_value(), run.loss()));
  const std::string difference = run.text("difference");
  if (!trainer_->takes(difference)) {
    return argument("setting 'difference'", difference + ", of the method " + manifest_.method,
                    "a method that takes one copy through the model at a time",
                    std::string("Use ") + (difference == "forward" ? "central" : "forward") + " differences.");
  }
  if ((state_ || !records_.empty()) && run.seed() != run_.seed()) {
    return Failure{ZO_STATE_ERROR, state_ ? state_->path() : "session",
                   "a run with seed " + std::to_string(run_.seed()), "seed " + std::to_string(run.seed()),
                   "Leave the seed out to resume this run, or use another state."};
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

Result<size_t> Session::slot(const std::string& name, size_t bytes) const {
  ZO_ASSIGN(index, find_slot(name));
  const SlotSpec& spec = slots_->spec(index);
  const uint64_t expected = spec.integers() ? spec.bytes() : spec.elements * sizeof(float);
  if (bytes != expected) {
    return argument("slot " + name, std::to_string(bytes) + " bytes",
                    std::to_string(expected) + " bytes of " + (spec.integers() ? dtype_text(spec.dtype) : "float32"),
                    "Pass an array of the slot's size.");
  }
  return index;
}

Status Session::read_slot(size_t slot, int32_t which, void* values) {
  if (which == ZO_SLOT_GRADIENT) {
    const bool there = slots_->trainable(slot) && !slots_->spec(slot).integers();
    const float* gradient = there ? trainer_->gradient(slot) : nullptr;
    if (gradient == nullptr) {
      return argument("slot " + slots_->spec(slot).name, "no gradient",
                      "a trainable slot, after a step of a first-order method", "Read it after a step.");
    }
    std::memcpy(values, gradient, slots_->spec(slot).elements * sizeof(float));
    return {};
  }
  const SlotSpec& spec = slots_->spec(slot);
  const bool finish = which == ZO_SLOT_FINISHED && !pending().empty() && slots_->trainable(slot);
  if (finish) {
    // Between steps the memory of the next values is free.
    ZO_TRY(trainer_->apply(pending(), run_.seed(), spec, slots_->current(slot), slots_->next(slot)));
  }
  pass_values(spec, finish ? slots_->next(slot) : slots_->current(slot), values);
  return {};
}

Status Session::write_slot(size_t slot, const void* values) {
  if (!records_.empty() || (state_ && !state_->writable())) {
    return argument("slot " + slots_->spec(slot).name,
                    records_.empty() ? "a state attached for reading" : "a run that has taken steps",
                    "a run that has not begun", "Import an adapter into a new state.");
  }
  ZO_ASSIGN(written, slot_bytes(slot, values));
  kept_.reset();
  ZO_TRY(make_room());
  slots_->set(slot, written.data());
  // Keep one replacement per slot, even if the slot is written several times.
  auto place = std::find_if(written_.begin(), written_.end(), [&](const auto& entry) { return entry.first == slot; });
  if (place == written_.end()) {
    place = written_.insert(place, {slot, {}});
  }
  place->second = std::move(written);
  initial_changed_ = true;
  return {};
}

Result<std::vector<uint8_t>> Session::slot_bytes(size_t slot, const void* values) const {
  const SlotSpec& spec = slots_->spec(slot);
  const auto* bytes = static_cast<const uint8_t*>(values);
  if (spec.dtype == ZO_INT8 && std::find(bytes, bytes + spec.bytes(), kNoInteger) != bytes + spec.bytes()) {
    return argument("slot " + spec.name, "the value -128", "values from -127 to 127", "Round to those.");
  }
  std::vector<uint8_t> written(bytes, bytes + (spec.integers() ? spec.bytes() : 0));
  if (!spec.integers()) {
    written.resize(spec.bytes());
    write_values(spec, static_cast<const float*>(values), written.data());
  }
  if (!all_finite(spec, written.data())) {
    return argument("slot " + spec.name, "a value that is not finite in " + std::string(dtype_text(spec.dtype)),
                    "finite values", "Import an adapter without NaN and infinity.");
  }
  return written;
}

Status Session::replay_slot(size_t slot, uint64_t updates, void* values) {
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
    pass_values(spec, initial, values);
    return {};
  }
  void* room = slots_->next(slot);  // free between steps
  std::memcpy(room, initial, spec.bytes());
  for (uint64_t i = 0; i < updates; ++i) {
    ZO_TRY(trainer_->apply(history(i + 1), run_.seed(), spec, room, room));
  }
  pass_values(spec, room, values);
  return {};
}

}  // namespace zoexport
