// The stages of a bundle: binds a stage's program to tokens, activations, labels, slots and mapped weights, and runs it.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "session/data/batching.h"
#include "session/manifest/manifest.h"
#include "session/programs/call_inputs.h"
#include "session/programs/frozen_prefix.h"
#include "session/programs/frozen_weights.h"
#include "session/programs/programs.h"
#include "session/state/slots.h"
#include "session/storage/scratch.h"

namespace zoexport {

// Inputs and outputs of one run of a stage; those without a role in its program stay null. Activations and their
// gradients are float32 and lie one after another, each at a multiple of Scratch::kAlignment bytes.
struct StageValues {
  const CallScalars* scalars = nullptr;             // of programs that perturb, or of adapters that leave out inputs
  const std::vector<uint32_t>* examples = nullptr;  // of the call's rows
  const int64_t* tokens = nullptr;                  // (rows, length)
  const uint8_t* activations = nullptr;
  const uint8_t* output_gradients = nullptr;
  size_t entries = 0;                        // of labels, where a program takes any number
  const int64_t* label_positions = nullptr;  // (entries)
  const int64_t* label_tokens = nullptr;     // (entries), or (label_rows) of a head that takes activations
  const float* label_weights = nullptr;      // (label_rows)
  uint8_t* saved = nullptr;                  // results that one program gives and another takes, as activations lie
  uint8_t* next_activations = nullptr;
  uint8_t* input_gradients = nullptr;
  float* label_logprobs = nullptr;  // as label_tokens, of each copy
  float* label_is_argmax = nullptr;
  const StateValues* state = nullptr;
  Slots* next_state = nullptr;                        // where next values go; null: nobody wants them
  std::function<float*(size_t slot)> state_gradient;  // where the gradient of a slot goes
};

class Stages {
 public:
  // Scratch files are made in `folder` (see Scratch). All references outlive this object.
  Stages(const Manifest& manifest, const Slots& slots, Programs& programs, FrozenWeights& weights,
         const std::string& folder);

  size_t count() const { return manifest_.stages.size(); }
  size_t head() const { return count() - 1; }
  const Manifest& manifest() const { return manifest_; }
  const Slots& slots() const { return slots_; }
  // For what passes between stages, of whoever runs a call.
  Scratch& scratch() { return scratch_; }
  const std::string& folder() const { return folder_; }
  FrozenPrefix& prefix() { return prefix_; }
  Engine& engine() { return programs_.engine(); }
  // Calls whose rows all differ.
  CallLimits limits(Pass pass) const;
  // Floats of one row of the last activation; 0 where the head takes none.
  size_t hidden() const { return hidden_; }
  // Bytes that hold what passes between any two stages in a call of rows of `length` tokens.
  size_t activation_bytes(uint32_t length) const;

  // Trainable slots that a stage reads, each once.
  const std::vector<size_t>& trainable(size_t stage) const { return trainable_[stage]; }
  bool has_backward(size_t stage) const { return !manifest_.stages[stage].backward.empty(); }
  bool can_save(size_t stage) const { return !manifest_.stages[stage].saving.empty(); }
  // Bytes of the results that a stage saves in a call of rows of `length` tokens.
  size_t saved_bytes(size_t stage, uint32_t length) const;

  // Runs a stage on rows of `length` tokens.
  Status run(size_t stage, Pass pass, uint32_t length, const StageValues& values);

  // Return whether a program gives the next values of all trainable slots; update() runs it.
  bool has_update() const { return update_ != nullptr; }
  Status update(const StageValues& values);

 private:
  // Runs a program of a stage; `update_` counts as one after the head.
  Status run(size_t stage, const ProgramSpec& program, uint32_t length, const StageValues& values);
  const void* input(size_t stage, const ValueSpec& value, const StageValues& values);
  Status open_weights();

  const Manifest& manifest_;
  const Slots& slots_;
  Programs& programs_;
  FrozenWeights& weights_;
  bool opened_ = false;  // the weights, when a program first runs
  const std::string& folder_;
  Scratch scratch_;
  NoiseInputs noise_;
  DropoutInputs dropout_;
  const std::vector<float> nothing_pending_;  // zeros, one for each query
  const ProgramSpec* update_;
  std::vector<std::map<std::string, size_t>> slot_of_;  // by stage, and of `update_`: local name -> slot
  std::vector<std::vector<size_t>> trainable_;
  size_t hidden_ = 0;
  FrozenPrefix prefix_;
};

}  // namespace zoexport
