// The stages of a split bundle: binds a stage's program to activations, gradients, slots and mapped weights, and runs it.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "session/manifest/manifest.h"
#include "session/programs/call_inputs.h"
#include "session/programs/call_runner.h"
#include "session/programs/frozen_weights.h"
#include "session/programs/programs.h"
#include "session/storage/scratch.h"

namespace zoexport {

// What one run of a stage reads and writes; what its program has no role for stays null. Activations and their gradients
// are float32 and lie one after another, each at a multiple of Scratch::kAlignment bytes.
struct StageValues {
  const CallScalars* scalars = nullptr;  // of programs that perturb
  const int64_t* tokens = nullptr;       // (rows, length)
  const uint8_t* activations = nullptr;
  const uint8_t* output_gradients = nullptr;
  const int64_t* label_tokens = nullptr;  // (label_rows), as are the others of labels
  const float* label_weights = nullptr;
  uint8_t* next_activations = nullptr;
  uint8_t* input_gradients = nullptr;
  float* label_logprobs = nullptr;
  float* label_is_argmax = nullptr;
  const StateValues* state = nullptr;
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
  Engine& engine() { return programs_.engine(); }
  // Calls whose rows all differ.
  CallLimits limits() const;
  // Floats of one row of the last activation.
  size_t hidden() const { return hidden_; }
  // Bytes that hold what passes between any two stages in a call of rows of `length` tokens.
  size_t activation_bytes(uint32_t length) const;

  // Trainable slots that a stage reads, each once.
  const std::vector<size_t>& trainable(size_t stage) const { return trainable_[stage]; }
  bool has_backward(size_t stage) const { return !manifest_.stages[stage].backward.empty(); }

  Status forward(size_t stage, uint32_t length, const StageValues& values) { return run(stage, length, values, false); }
  Status backward(size_t stage, uint32_t length, const StageValues& values) { return run(stage, length, values, true); }

 private:
  Status run(size_t stage, uint32_t length, const StageValues& values, bool backward);
  Status open_weights();

  const Manifest& manifest_;
  const Slots& slots_;
  Programs& programs_;
  FrozenWeights& weights_;
  bool opened_ = false;  // the weights, when a program first runs
  const std::string& folder_;
  Scratch scratch_;
  NoiseInputs noise_;
  std::vector<std::map<std::string, size_t>> slot_of_;  // by stage: local name -> slot
  std::vector<std::vector<size_t>> trainable_;
  size_t hidden_ = 0;
};

}  // namespace zoexport
