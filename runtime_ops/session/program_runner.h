// Binds a program's inputs and outputs by role and runs it on one call.
#pragma once

#include <functional>
#include <vector>

#include "engines/engine.h"
#include "session/batching.h"
#include "session/manifest.h"
#include "session/slots.h"

namespace zoexport {

// The inputs of a call that are not rows or slots.
struct CallScalars {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t query = 0;
  float sign = 1;
  float learning_rate = 0;
  float epsilon = 0;
  const float* gradients = nullptr;  // null: zeros, nothing is pending
};

// What a program has cost so far.
struct ProgramCost {
  uint64_t calls = 0;
  double seconds = 0;       // in the engine
  double load_seconds = 0;  // checking its file and loading it
};

class ProgramRunner {
 public:
  // A failure names an input or output whose role a session does not know. `prepare` runs before the first call.
  static Result<ProgramRunner> create(const Manifest& manifest, const std::string& name, Engine& engine,
                                      std::function<Status(const ProgramSpec&)> prepare);

  const ProgramSpec& spec() const { return *program_; }
  const ProgramCost& cost() const { return cost_; }
  CallLimits limits() const { return limits_; }
  // Copies in label_logprobs.
  uint32_t copies() const { return copies_; }

  // `state(i)` is the value of slot i that the program reads. `next`: whether its state outputs become the slots' next
  // values. Afterwards logprobs() is (copies, entries of the call with filling).
  Status run(const Call& call, const CallScalars& scalars, Slots& slots,
             const std::function<const float*(size_t)>& state, bool next);

  const float* logprobs(uint32_t copy) const { return logprobs_.data() + size_t{copy} * entries_; }
  // 1 where an entry's label is the most likely token; empty where the program does not say.
  const std::vector<float>& is_argmax() const { return is_argmax_; }

 private:
  ProgramRunner() = default;
  Result<Tensor> bind_input(const ValueSpec& value, const Call& call, const Slots& slots,
                            const std::function<const float*(size_t)>& state);
  Result<Tensor> bind_output(const ValueSpec& value, Slots& slots, bool next);

  const ProgramSpec* program_ = nullptr;
  Engine* engine_ = nullptr;
  std::function<Status(const ProgramSpec&)> prepare_;
  bool loaded_ = false;
  ProgramCost cost_;
  CallLimits limits_{};
  uint32_t copies_ = 1;
  size_t entries_ = 0;
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
