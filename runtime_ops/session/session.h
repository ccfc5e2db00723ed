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
  std::optional<TrustedKeys> trusted;  // keys of which one must have signed the bundle; whose files are hashed then
  std::optional<zo_engine> engine;
  std::string engine_name;  // of those that the bundle has programs for; empty: the manifest's
  std::string cache;        // the folder of what a GPU's driver makes of shaders; empty: it is not kept
  bool kernel_times = false;
};

// What one step computed, with the values that zo_step points to.
struct StepReport {
  uint64_t step = 0;
  double learning_rate = 0;
  double seconds = 0;
  StepOutput output;
};

// Held-out examples that a run evaluates on while it trains. What is not asked for is as the run has it, or as the header says.
struct Validation {
  const Dataset* held_out = nullptr;  // null: nothing is evaluated
  uint32_t every = 0;
  uint32_t patience = 0;
  std::optional<bool> keep_best;
  // Told of each evaluation, and whether it is the best so far; false ends the run.
  std::function<bool(const Evaluated& evaluated, bool best)> on_evaluated;
};

struct TrainOptions {
  uint64_t total_steps = 0;
  std::function<bool(const zo_progress&)> go_on;  // after every step; false ends the run
  Validation validation;
  GoOn part;  // of the examples of an evaluation, or of those that the reference model scores
};

// What is to be generated, and with what. The prompt is one of `options.prompt`, `text` and `messages`.
struct GenerateRequest {
  GenerateOptions options;
  std::optional<std::string> text;
  std::vector<Message> messages;
  Message tools;
  std::vector<std::string> stop_strings;
  std::optional<std::string> adapter;  // the name of a loaded one, in place of what the session trained
  bool untrained = false;              // with the slots as the bundle has them
  bool keep = false;                   // the caches, for a prompt that begins alike
  OnToken on_token;
  std::function<bool(const std::string& piece)> on_text;  // whether to go on; may be empty

  bool wants_text() const { return text || !messages.empty() || !stop_strings.empty() || on_text; }
};

struct Generated {
  Generation made;
  size_t prompt_tokens = 0;
  uint64_t anonymous_bytes = 0;
  std::optional<std::string> text;  // where it was wanted
};

// The files that an adapter becomes.
struct ExportOptions {
  bool gguf = false;     // else a folder for PEFT
  int32_t outtype = 0;   // of GGUF alone: one of ZO_OUTTYPE_*
  bool replace = false;  // what is at the path
};

class Session {
 public:
  static Result<std::unique_ptr<Session>> open(const std::string& bundle, const OpenOptions& options);

  const Manifest& manifest() const { return manifest_; }
  uint32_t queries() const { return trainer_->queries(); }
  uint64_t steps() const { return records_.size(); }
  // Of every program, in the manifest's order.
  const std::vector<ProgramCost>& costs() const { return programs_->costs(); }
  // Of the engine's kernels, where it counts them.
  const std::vector<KernelCost>& kernel_costs() const { return engine_->kernel_costs(); }
  uint64_t device_bytes() const { return engine_->device_bytes(); }
  const std::vector<Record>& records() const { return records_; }
  const RunSettings& run() const { return run_; }
  // What was found on held-out examples so far.
  const std::vector<Evaluated>& evaluated() const {
    static const std::vector<Evaluated> kNone;
    return evaluations_ ? evaluations_->made : kNone;
  }
  const Evaluated* best() const { return evaluations_ ? evaluations_->best() : nullptr; }

  // These four give up a state that the session made where they fail before its first step.
  Status attach(const std::string& folder, const AttachOptions& options);
  // Changes settings of the run, by key.
  Status configure(const nlohmann::json& settings);
  Result<StepReport> step(const Dataset& dataset, const uint64_t* indices, size_t count);
  Status train(const Dataset& dataset, const TrainOptions& options);
  // `go_on` is told of the examples.
  Result<Evaluation> evaluate(const Dataset& dataset, const GoOn& go_on) {
    return or_fall_back([&] { return evaluate_on(dataset, go_on); });
  }
  // Says that the bundle's own engine failed and another one is in use; else empty.
  const std::string& notice() const { return notice_; }
  // What follows a prompt. Caches and the tokenizer may stay for the next one, until a step is taken or forget().
  Result<Generated> generate(GenerateRequest request);
  void forget();
  // Values of slots under a name, for generation alone. Loading replaces one of that name, or changes nothing.
  Status load_adapter(const std::string& name, const std::string& folder);
  Status write_adapter(const std::string& name, size_t slot, const void* values);
  Status drop_adapter(const std::string& name);
  const std::map<std::string, NamedSlots>& adapters() const { return adapters_; }
  // Writes what was trained, the pending update applied, as an adapter's files.
  Status export_adapter(const ExportOptions& options, const std::string& path);
  // Goes on by another session's records (zo_session_follow).
  Status follow(std::vector<Record> records);

  // The number of a slot.
  Result<size_t> find_slot(const std::string& name) const;
  // Also checks that values of so many bytes pass: float32 for slots of floats, else the slot's own dtype.
  Result<size_t> slot(const std::string& name, size_t bytes) const;
  // `which` is one of ZO_SLOT_*.
  Status read_slot(size_t slot, int32_t which, void* values);
  Status write_slot(size_t slot, const void* values);
  Status replay_slot(size_t slot, uint64_t updates, void* values);
  Status save();

 private:
  static constexpr size_t kMostInHeap = size_t{8} << 20;
  static constexpr size_t kEvaluationGroup = 64;  // examples laid out at a time: full calls, and little memory

  Session(Folder bundle, Manifest manifest, const OpenOptions& options)
      : options_(options),
        manifest_(std::move(manifest)),
        files_(std::move(bundle), manifest_, options.skip_hashes && !options.trusted) {}

  // Every file that steps may use, before a state is made for them.
  Status verify_programs();
  // What a verb gives, after which a state that the session made is kept or given up.
  template <typename Given>
  Given judged(Given given);
  Status check_settings(const RunSettings& run) const;
  Result<Evaluation> evaluate_on(const Dataset& dataset, const GoOn& go_on);
  Result<StepReport> step_on(const Dataset& dataset, const uint64_t* indices, size_t count);
  Status train_on(const Dataset& dataset, const TrainOptions& options);
  // What a run evaluates from now on, none where nothing is; or why not.
  Result<std::optional<Evaluations>> asked_validation(const Validation& asked, uint64_t total_steps) const;
  // Evaluates where the steps so far ask for it and that was not done; false: the host wants the run to end.
  Result<bool> validate(const Validation& validation, uint64_t total_steps, const GoOn& part);
  // Saves a run that the host wants to end; the failure that says so.
  Status stopped(uint64_t total_steps);
  // Configures what the state says of its run.
  Status take_recorded();
  // The record of a run that goes on with these settings and examples, or that the state refuses to.
  Result<RunRecord> asked(const RunSettings& run, const Dataset* dataset) const;
  // Before steps are taken: their settings, and the examples where the run has a set of them, are the run's from now on, or
  // refused.
  Status begin_run(uint64_t total_steps, const Dataset* dataset);
  // Likewise refuses others, where no step is to be taken.
  Status check_run(const Dataset& dataset) const;
  // Whether the bundle and the configured loss can use these examples.
  Status check_dataset(const Dataset& dataset) const;
  // The slots with the pending update applied: between steps their next values are free to hold them.
  Result<StateValues> finished();
  // The slots as the bundle has them.
  StateValues untrained() const;
  // Scores under the bundle's own values, of each candidate of these examples.
  Result<std::vector<double>> score_reference(const Dataset& dataset, const uint64_t* indices, size_t count,
                                              const GoOn& go_on);
  // The same from scores that are known of the whole dataset, where they are; none where the loss has no reference model.
  Result<std::vector<double>> reference_of(const Dataset& dataset, const uint64_t* indices, size_t count,
                                           const ReferenceScores* known, const GoOn& go_on);
  // Those of these examples; null where they are not known.
  const ReferenceScores* find_reference(const RunData& data) const;
  // Sees to it that the scores which the loss needs of whole datasets are known, and kept in the state.
  Status know_reference(const std::vector<const Dataset*>& datasets, const GoOn& go_on);
  // Why the bundle cannot generate.
  Status check_generates() const;
  // Opened when it is first needed.
  Result<const Tokenizer*> tokenizer();
  // The tokens of a prompt that is text, and after which tokens nothing follows then.
  Status read_prompt(GenerateRequest& request);
  Result<StateValues> values_of(const GenerateRequest& request);
  Status check_adapter_name(const std::string& name) const;
  Result<std::map<std::string, NamedSlots>::iterator> find_adapter(const std::string& name);
  // The text of the bundle's adapter_config.json; the failure of a bundle that has none.
  Result<std::string> adapter_description(const std::string& where, const std::string& fix) const;
  // The adapter's layers, whose values are those of now.
  Result<std::vector<AdapterLayer>> adapter_layers();
  // Gives layers the manifest's names for them.
  Status name_for_llama_cpp(std::vector<AdapterLayer>& layers) const;
  // Values that a host passes, as the slot has them, or why it cannot have them.
  Result<std::vector<uint8_t>> slot_bytes(size_t slot, const void* values) const;
  // The examples of step `step` (docs/session.md, "A step").
  std::vector<uint64_t> batch(uint64_t step, size_t examples);
  // `reference` (may be null) is what is known of the dataset.
  Result<StepReport> take_step(const Dataset& dataset, const std::vector<uint64_t>& indices, double learning_rate,
                               const ReferenceScores* reference);
  Status check_writable() const;
  // A state that can be trained, room for the slots' copies, and the initial values on disk: what a step begins with.
  Status prepare_step();
  // Steps from one snapshot to the next.
  uint64_t steps_of_a_snapshot() const;
  // Why training cannot have made these records as the next of this run; the guard has then seen them all.
  Status check_records(const std::vector<Record>& records, DivergenceGuard& guard) const;
  // Goes back to the steps that are still good; the failure says why.
  Status diverged(const Divergence& divergence);
  // Shows the guard the steps that are in the log.
  void watch_again();
  // The first `updates` records, of which the last is to be applied.
  History history(uint64_t updates) const { return {records_.data(), updates}; }
  History pending() const { return records_.size() > applied_ ? history(records_.size()) : History(); }
  // Whether the update of a step is applied by the next one, and can be repeated from its record.
  bool deferred() const { return trainer_->queries() > 0; }
  // Whether the slots' copies lie in a mapped file, made when they are first needed: those of first-order methods, and
  // whatever is as long as a model. Others are a few megabytes in the heap, from the start.
  bool in_file() const { return first_order() || slots_->trainable_bytes() > kMostInHeap; }
  bool first_order() const { return !manifest_.step.probes_loss(); }
  // Makes the current values those after `updates` updates, from the newest snapshot that serves or the initial values.
  // Where records do not tell how to repeat an update, those after fewer updates, applied_.
  Status restore(uint64_t updates);
  Status restore_initial(SlotKind kind);
  // Room for the slots' copies, where they have none yet.
  Status make_room();
  // Right after a state was attached: the values that its records end with. Of first-order methods, or the newest before
  // them that are certain; then the later records are dropped.
  Status resume();
  Status resume_copies();
  // The host's engine, or the one of this name.
  Result<std::unique_ptr<Engine>> make_engine(const std::string& name) const;
  // Makes what runs the manifest's programs on an engine.
  Status run_on(std::unique_ptr<Engine> engine);
  // After a failure of the engine: continues with the manifest's fallback, whose programs train the same slots. Gives the
  // failure itself if there is none, the host chose the engine, or the failure is of another kind.
  Status fall_back(const Failure& failure);
  // Gives what `body` gives, which runs programs and changes nothing if it fails. If the engine fails, repeats it with the
  // fallback.
  template <typename Body>
  auto or_fall_back(const Body& body) -> decltype(body()) {
    auto given = body();
    if (given.ok()) {
      return given;
    }
    ZO_TRY(fall_back(given.failure()));
    return body();
  }
  // Adds the engine to a run's changes unless it is the one of its last steps.
  void note_engine(RunRecord& run) const;
  // The engine of the programs that generate.
  Status load_generating();
  Status read_copies();
  // Of a state that is read: the values after the steps of the best evaluation, from its snapshot and records.
  Status read_best();
  // Of first-order methods: the values after records_.size() steps, or the newest before them.
  Status go_back();
  Status drop_records_after(uint64_t steps);
  Status replay(uint64_t from, uint64_t to);
  Status write_initial_if_changed();

  OpenOptions options_;
  Manifest manifest_;
  BundleFiles files_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Engine> generating_engine_;  // where it is another one
  std::string own_engine_;                     // the bundle's
  std::string notice_;
  bool told_notice_ = false;
  std::optional<Slots> slots_;
  std::string scratch_folder_;  // empty: the folder for temporary files
  std::unique_ptr<Programs> programs_;
  std::unique_ptr<Programs> generating_;  // once something was generated
  std::unique_ptr<Tokenizer> tokenizer_;
  std::map<std::string, NamedSlots> adapters_;
  std::unique_ptr<FrozenWeights> weights_;
  std::unique_ptr<Stages> stages_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<StageScorer> evaluator_;
  std::unique_ptr<Decoder> kept_;  // with what it read, with which slots
  std::pair<std::optional<std::string>, bool> kept_with_;

  RunSettings run_;
  std::optional<StateFolder> state_;
  std::optional<RunRecord> recorded_;  // what the state has of its run
  std::optional<Evaluations> evaluations_;
  std::vector<ReferenceScores> references_;  // of the examples that the run trains and evaluates on
  bool changes_settings_ = false;
  std::vector<Record> records_;
  uint64_t applied_ = 0;              // updates that are in the slots' current values
  std::optional<uint64_t> snapshot_;  // the steps of the snapshot that was last written or read
  DivergenceGuard guard_;

  // Slots that the host wrote; index -> values. They replace the bundle's initial ones.
  std::vector<std::pair<size_t, std::vector<uint8_t>>> written_;
  bool initial_changed_ = false;

  // The order of the epoch that was last used.
  std::optional<uint64_t> order_epoch_;
  std::vector<uint32_t> order_;
};

template <typename Given>
Given Session::judged(Given given) {
  if (state_) {
    // A run that diverged leaves its last good state, also where that has no steps.
    state_->want(given.ok() || given.failure().code == ZO_DIVERGED);
  }
  return given;
}

}  // namespace zoexport
