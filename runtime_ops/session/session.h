// A session: one bundle, its state, and the training loop. The C ABI (bindings/c_api.cpp) is a thin layer over it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engines/engine.h"
#include "session/adapters/adapter.h"
#include "session/chat/chat.h"
#include "session/data/dataset.h"
#include "session/data/loss.h"
#include "session/generate/generator.h"
#include "session/manifest/bundle_files.h"
#include "session/manifest/manifest.h"
#include "session/programs/programs.h"
#include "session/programs/stages.h"
#include "session/state/named_slots.h"
#include "session/state/slots.h"
#include "session/state/state_folder.h"
#include "session/text/tokenizer.h"
#include "session/train/divergence.h"
#include "session/train/stage_scorer.h"
#include "session/train/trainer.h"

namespace zoexport {

struct OpenOptions {
  uint32_t threads = 0;
  bool skip_hashes = false;
  std::optional<TrustedKeys> trusted;  // one of these keys must have signed the bundle; its files are hashed
  std::optional<zo_engine> engine;
  std::string engine_name;  // an engine that the bundle has programs for; empty: the manifest's
  std::string cache;        // folder for shaders compiled by the GPU driver; empty: no cache
  bool kernel_times = false;
};

// Results of one step, including the values that zo_step points to.
struct StepReport {
  uint64_t step = 0;
  double learning_rate = 0;
  double seconds = 0;
  StepOutput output;
};

// Validation during training. Options that are not set keep the run's values, or the defaults in zoexport/session.h.
struct Validation {
  const Dataset* held_out = nullptr;  // null: no validation
  uint32_t every = 0;
  uint32_t patience = 0;
  std::optional<bool> keep_best;
  // Called after each evaluation; `best`: it is the best so far. Returns false to end the run.
  std::function<bool(const Evaluated& evaluated, bool best)> on_evaluated;
};

struct TrainOptions {
  uint64_t total_steps = 0;
  std::function<bool(const zo_progress&)> go_on;  // called after every step; returns false to end the run
  Validation validation;
  GoOn part;  // progress over examples being evaluated or scored by the reference model
};

// Prompt, weights and callbacks of one generation. The prompt is one of `options.prompt`, `text` and `messages`.
struct GenerateRequest {
  GenerateOptions options;
  std::optional<std::string> text;
  std::vector<Message> messages;
  Message tools;
  std::vector<std::string> stop_strings;
  std::optional<std::string> adapter;  // name of a loaded adapter to use instead of the session's values
  bool untrained = false;              // use the bundle's initial values
  bool keep = false;                   // keep the caches for a later prompt with the same prefix
  OnToken on_token;
  std::function<bool(const std::string& piece)> on_text;  // returns false to stop; may be empty

  bool wants_text() const { return text || !messages.empty() || !stop_strings.empty() || on_text; }
};

struct Generated {
  Generation made;
  size_t prompt_tokens = 0;
  uint64_t anonymous_bytes = 0;
  std::optional<std::string> text;  // if requested
};

// File format of an exported adapter.
struct ExportOptions {
  bool gguf = false;     // false: a PEFT folder
  int32_t outtype = 0;   // GGUF only: one of ZO_OUTTYPE_*
  bool replace = false;  // overwrite what is at the path
};

class Session {
 public:
  static Result<std::unique_ptr<Session>> open(const std::string& bundle, const OpenOptions& options);

  const Manifest& manifest() const { return manifest_; }
  uint32_t queries() const { return trainer_->queries(); }
  uint64_t steps() const { return records_.size(); }
  // Costs of all programs, in the manifest's order.
  const std::vector<ProgramCost>& costs() const { return programs_->costs(); }
  // Costs of the engine's kernels, if it measures them.
  const std::vector<KernelCost>& kernel_costs() const { return engine_->kernel_costs(); }
  uint64_t device_bytes() const { return engine_->device_bytes(); }
  const std::vector<Record>& records() const { return records_; }
  const RunSettings& run() const { return run_; }
  // Evaluations on held-out examples so far.
  const std::vector<Evaluated>& evaluated() const {
    static const std::vector<Evaluated> kNone;
    return evaluations_ ? evaluations_->made : kNone;
  }
  const Evaluated* best() const { return evaluations_ ? evaluations_->best() : nullptr; }

  // If one of these four fails before the first step, it discards a state that the session created.
  Status attach(const std::string& folder, const AttachOptions& options);
  // Change settings of the run, by key.
  Status configure(const nlohmann::json& settings);
  Result<StepReport> step(const Dataset& dataset, const uint64_t* indices, size_t count);
  Status train(const Dataset& dataset, const TrainOptions& options);
  // Evaluate on all examples; `go_on` receives the number of examples done.
  Result<Evaluation> evaluate(const Dataset& dataset, const GoOn& go_on) {
    return or_fall_back([&] { return evaluate_on(dataset, go_on); });
  }
  // Score every candidate of all examples; `go_on` receives the number of examples done.
  Result<std::vector<std::vector<CandidateScore>>> score(const Dataset& dataset, const GoOn& go_on);
  // Notice that the bundle's own engine failed and another one is in use; else empty.
  const std::string& notice() const { return notice_; }
  // Generate a response. Caches and the tokenizer may be kept for the next prompt, until a step or forget().
  Result<Generated> generate(GenerateRequest request);
  void forget();
  // Named adapters, for generation only. Loading replaces an adapter of the same name; on failure nothing changes.
  Status load_adapter(const std::string& name, const std::string& folder);
  Status write_adapter(const std::string& name, size_t slot, const void* values);
  Status drop_adapter(const std::string& name);
  const std::map<std::string, NamedSlots>& adapters() const { return adapters_; }
  // Export the trained values as an adapter, with the pending update applied.
  Status export_adapter(const ExportOptions& options, const std::string& path);
  // Continue from another session's records (zo_session_follow).
  Status follow(std::vector<Record> records);

  // Return the index of a slot.
  Result<size_t> find_slot(const std::string& name) const;
  // Also check the size of its values in bytes: float32 for floating-point slots, else the slot's own dtype.
  Result<size_t> slot(const std::string& name, size_t bytes) const;
  // `which` is one of ZO_SLOT_*.
  Status read_slot(size_t slot, int32_t which, void* values);
  Status write_slot(size_t slot, const void* values);
  Status replay_slot(size_t slot, uint64_t updates, void* values);
  Status save();

 private:
  static constexpr size_t kMostInHeap = size_t{8} << 20;
  static constexpr size_t kEvaluationGroup = 64;  // examples per layout: full batches with little memory

  Session(Folder bundle, Manifest manifest, const OpenOptions& options)
      : options_(options),
        manifest_(std::move(manifest)),
        files_(std::move(bundle), manifest_, options.skip_hashes && !options.trusted) {}

  // Verify every file that steps may use, before creating a state.
  Status verify_programs();
  // Return `given`, after keeping or discarding a state that the session created.
  template <typename Given>
  Given judged(Given given);
  Status check_settings(const RunSettings& run) const;
  Result<Evaluation> evaluate_on(const Dataset& dataset, const GoOn& go_on);
  Result<StepReport> step_on(const Dataset& dataset, const uint64_t* indices, size_t count);
  Status train_on(const Dataset& dataset, const TrainOptions& options);
  // Return the run's validation from now on, empty if there is none; fail if the state refuses the changes.
  Result<std::optional<Evaluations>> asked_validation(const Validation& asked, uint64_t total_steps) const;
  // Evaluate if an evaluation is due at the current step and missing; return false if the host ends the run.
  Result<bool> validate(const Validation& validation, uint64_t total_steps, const GoOn& part);
  // Save a run that the host ends; return the ZO_CANCELLED failure.
  Status stopped(uint64_t total_steps);
  // Apply the run settings that the state stores.
  Status take_recorded();
  // Return the record of a run that continues with these settings and examples; fail if the state refuses the changes.
  Result<RunRecord> asked(const RunSettings& run, const Dataset* dataset) const;
  // Record the settings and the dataset (null: the host chooses examples) as the run's before steps are taken; fail if
  // the state refuses the changes.
  Status begin_run(uint64_t total_steps, const Dataset* dataset);
  // Make the same check if no step will be taken, without recording anything.
  Status check_run(const Dataset& dataset) const;
  // Check that the bundle's programs can read these examples.
  Status check_tokens(const Dataset& dataset) const;
  // Also check that the configured loss can use them.
  Status check_dataset(const Dataset& dataset) const;
  // Return the slots with the pending update applied; between steps the memory of the next values is free for this.
  Result<StateValues> finished();
  // Return the bundle's initial values of the slots.
  StateValues untrained() const;
  // Score each candidate of these examples with the bundle's own values.
  Result<std::vector<double>> score_reference(const Dataset& dataset, const uint64_t* indices, size_t count,
                                              const GoOn& go_on);
  // Score every candidate of `count` examples under these values, by example.
  Result<std::vector<std::vector<CandidateScore>>> score_with(const StateValues& state, const Dataset& dataset,
                                                              const uint64_t* indices, size_t count, const GoOn& go_on);
  // Like score_reference(), but use the dataset's `known` scores if not null; empty for losses without a reference.
  Result<std::vector<double>> reference_of(const Dataset& dataset, const uint64_t* indices, size_t count,
                                           const ReferenceScores* known, const GoOn& go_on);
  // Return the reference scores of a dataset; null if they are not computed yet.
  const ReferenceScores* find_reference(const RunData& data) const;
  // Compute the missing reference scores that the loss needs for whole datasets, and store them in the state.
  Status know_reference(const std::vector<const Dataset*>& datasets, const GoOn& go_on);
  // Check that the bundle can generate.
  Status check_generates() const;
  // Return the tokenizer, opened on first use.
  Result<const Tokenizer*> tokenizer();
  // Tokenize a prompt given as text or messages, and set its default stop tokens.
  Status read_prompt(GenerateRequest& request);
  Result<StateValues> values_of(const GenerateRequest& request);
  Status check_adapter_name(const std::string& name) const;
  Result<std::map<std::string, NamedSlots>::iterator> find_adapter(const std::string& name);
  // Return the text of the bundle's adapter_config.json; fail if the bundle has none.
  Result<std::string> adapter_description(const std::string& where, const std::string& fix) const;
  // Return the adapter's layers with their current values.
  Result<std::vector<AdapterLayer>> adapter_layers();
  // Set the layers' llama.cpp names from the manifest.
  Status name_for_llama_cpp(std::vector<AdapterLayer>& layers) const;
  // Convert a host's values to the slot's dtype; refuse invalid values.
  Result<std::vector<uint8_t>> slot_bytes(size_t slot, const void* values) const;
  // Return the indices of the examples of step `step` (docs/noise.md, "Batches and the learning rate").
  std::vector<uint64_t> batch(uint64_t step, size_t examples);
  // `reference`: known scores of the dataset, may be null.
  Result<StepReport> take_step(const Dataset& dataset, const std::vector<uint64_t>& indices, double learning_rate,
                               const ReferenceScores* reference);
  Status check_writable() const;
  // Prepare a step: check that the state is writable, allocate the slots' copies and write changed initial values.
  Status prepare_step();
  // Return the number of steps from one snapshot to the next.
  uint64_t steps_of_a_snapshot() const;
  // Check that training can have made these records as the run's next steps; `guard` observes them.
  Status check_records(const std::vector<Record>& records, DivergenceGuard& guard) const;
  // Go back to the last good step; return the ZO_DIVERGED failure.
  Status diverged(const Divergence& divergence);
  // Reset the divergence guard and replay all records into it.
  void watch_again();
  // Return the first `updates` records; the last one is to be applied.
  History history(uint64_t updates) const { return {records_.data(), updates}; }
  History pending() const { return records_.size() > applied_ ? history(records_.size()) : History(); }
  // Return whether the next step applies a step's update, which can be replayed from its record.
  bool deferred() const { return trainer_->queries() > 0; }
  // Return whether the slots' copies are in a mapped file, created on first use: for first-order methods, and for slots
  // as large as a model. Other copies take a few megabytes of heap from the start.
  bool in_file() const { return first_order() || slots_->trainable_bytes() > kMostInHeap; }
  bool first_order() const { return !manifest_.step.probes_loss(); }
  // Restore the values after `updates` updates, from the newest usable snapshot or the initial values. If records
  // cannot replay updates, restore the values of that snapshot; applied_ is its number of updates.
  Status restore(uint64_t updates);
  Status restore_initial(SlotKind kind);
  // Allocate the slots' copies if they are not allocated yet.
  Status make_room();
  // Restore the values after the last record of a newly attached state. First-order methods may restore older values,
  // the newest that are certain, and then drop the later records.
  Status resume();
  Status resume_copies();
  // Return the host's engine if there is one, else the manifest's, whose backends must be here, or that of a name.
  Result<std::unique_ptr<Engine>> make_engine(const Manifest& manifest) const;
  Result<std::unique_ptr<Engine>> make_engine(const std::string& name) const;
  // Create the objects that run the manifest's programs on an engine.
  Status run_on(std::unique_ptr<Engine> engine);
  // Switch to the manifest's fallback after an engine failure; its programs train the same slots. Return `failure` if
  // there is no fallback, the host chose an engine that it is not for, or the failure is of another kind.
  Status fall_back(const Failure& failure);
  Status switch_to(const Manifest& other, std::unique_ptr<Engine> engine, const Failure& failure);
  // Return the result of `body`, which runs programs and changes nothing if it fails. If the engine fails, repeat
  // `body` with the next fallback.
  template <typename Body>
  auto or_fall_back(const Body& body) -> decltype(body()) {
    auto given = body();
    while (!given.ok()) {
      ZO_TRY(fall_back(given.failure()));
      given = body();
    }
    return given;
  }
  // Add the engine to a run's changes unless its last steps used the same engine.
  void note_engine(RunRecord& run) const;
  // Load the programs that generate, and their engine.
  Status load_generating();
  Status read_copies();
  // Restore the values of the best evaluation from its snapshot and records, for a state that is attached for reading.
  Status read_best();
  // Restore the values after records_.size() steps, or the newest before them, for first-order methods.
  Status go_back();
  Status drop_records_after(uint64_t steps);
  Status replay(uint64_t from, uint64_t to);
  Status write_initial_if_changed();

  OpenOptions options_;
  Manifest manifest_;
  BundleFiles files_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Engine> generating_engine_;  // if it differs from engine_
  std::string own_engine_;                     // the bundle's primary engine
  std::string notice_;
  bool told_notice_ = false;
  std::optional<Slots> slots_;
  std::string scratch_folder_;  // empty: use the folder for temporary files
  std::unique_ptr<Programs> programs_;
  std::unique_ptr<Programs> generating_;  // created by the first generation
  std::unique_ptr<Tokenizer> tokenizer_;
  std::map<std::string, NamedSlots> adapters_;
  std::unique_ptr<FrozenWeights> weights_;
  std::unique_ptr<Stages> stages_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<StageScorer> evaluator_;
  std::unique_ptr<Decoder> kept_;                          // decoder kept for the next prompt, with its caches
  std::pair<std::optional<std::string>, bool> kept_with_;  // adapter name and `untrained` of its request

  RunSettings run_;
  std::optional<StateFolder> state_;
  std::optional<RunRecord> recorded_;  // the state's record of its run
  std::optional<Evaluations> evaluations_;
  std::vector<ReferenceScores> references_;  // for the run's training and validation sets
  bool changes_settings_ = false;
  std::vector<Record> records_;
  uint64_t applied_ = 0;              // number of updates in the slots' current values
  std::optional<uint64_t> snapshot_;  // steps of the last snapshot written or read
  DivergenceGuard guard_;

  // Slots that the host wrote; index -> values. They replace the bundle's initial values.
  std::vector<std::pair<size_t, std::vector<uint8_t>>> written_;
  bool initial_changed_ = false;

  // Order of the examples in the epoch last used.
  std::optional<uint64_t> order_epoch_;
  std::vector<uint32_t> order_;
};

template <typename Given>
Given Session::judged(Given given) {
  if (state_) {
    // A diverged run keeps its last good state, even if that has no steps.
    state_->want(given.ok() || given.failure().code == ZO_DIVERGED);
  }
  return given;
}

}  // namespace zoexport
