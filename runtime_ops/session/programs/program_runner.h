// Scores calls with one program of the whole model: binds its inputs and outputs by role.
#pragma once

#include <string>
#include <vector>

#include "session/manifest/manifest.h"
#include "session/programs/call_inputs.h"
#include "session/programs/frozen_weights.h"
#include "session/programs/programs.h"

namespace zoexport {

class ProgramRunner : public CallRunner {
 public:
  // A failure names an input or output whose role a session does not know.
  // References outlive it.
  static Result<ProgramRunner> create(const Manifest& manifest, const std::string& name, Programs& programs,
                                      FrozenWeights& weights);

  const ProgramSpec& spec() const { return *program_; }
  CallLimits limits() const override { return limits_; }
  // Copies in label_logprobs.
  uint32_t copies() const override { return copies_; }

  // With `next`, the program's state outputs become the slots' next values.
  Status run(const Call& call, const CallScalars& scalars, Slots& slots, const StateValues& state, bool next) override;

  const float* logprobs(uint32_t copy) const override { return logprobs_.data() + size_t{copy} * entries_; }
  const std::vector<float>& is_argmax() const override { return is_argmax_; }

 private:
  ProgramRunner() = default;
  Result<Tensor> bind_input(const ValueSpec& value, const Call& call, const Slots& slots, const StateValues& state);
  Result<Tensor> bind_output(const ValueSpec& value, Slots& slots, bool next);
  Status open_weights();

  const ProgramSpec* program_ = nullptr;
  Programs* programs_ = nullptr;
  FrozenWeights* weights_ = nullptr;
  bool opened_ = false;  // the weights, when the program first runs
  CallLimits limits_{};
  uint32_t copies_ = 1;
  size_t entries_ = 0;  // of the call, with filling
  std::vector<float> logprobs_;
  std::vector<float> is_argmax_;
  CallScalars scalars_;  // what inputs point to during a call
  std::vector<float> gradients_;
  NoiseInputs noise_;
};

}  // namespace zoexport
