// Scores calls with one program of the whole model: binds its inputs and outputs by role.
#pragma once

#include <vector>

#include "session/call_runner.h"
#include "session/manifest.h"
#include "session/programs.h"

namespace zoexport {

class ProgramRunner : public CallRunner {
 public:
  // A failure names an input or output whose role a session does not know.
  static Result<ProgramRunner> create(const Manifest& manifest, const std::string& name, Programs& programs);

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

  const ProgramSpec* program_ = nullptr;
  Programs* programs_ = nullptr;
  CallLimits limits_{};
  uint32_t copies_ = 1;
  size_t entries_ = 0;  // of the call, with filling
  std::vector<float> logprobs_;
  std::vector<float> is_argmax_;
  // What scalar inputs point to during a call.
  int64_t seed_ = 0;
  int64_t step_ = 0;
  int64_t query_ = 0;
  float sign_ = 1;
  float learning_rate_ = 0;
  float epsilon_ = 0;
  std::vector<float> gradients_;
};

}  // namespace zoexport
