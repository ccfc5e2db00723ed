// Scores calls: what training and evaluation ask of a bundle, be its programs whole models or stages of one.
#pragma once

#include <functional>
#include <vector>

#include "session/data/batching.h"
#include "session/state/slots.h"

namespace zoexport {

// The inputs of a call that are not rows or slots.
struct CallScalars {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t query = 0;
  float sign = 1;
  float learning_rate = 0;
  float epsilon = 0;
  const std::vector<float>* gradients = nullptr;  // one for each query; null: zeros, nothing is pending
};

// The values of a slot that a call reads, in the slot's dtype.
using StateValues = std::function<const void*(size_t slot)>;

class CallRunner {
 public:
  virtual ~CallRunner() = default;
  virtual CallLimits limits() const = 0;
  // Copies of the model that one call scores.
  virtual uint32_t copies() const = 0;
  // `next`: whether the slots' next values become those of `state` with the scalars' gradients applied. Afterwards
  // logprobs() and is_argmax() are those of the call.
  virtual Status run(const Call& call, const CallScalars& scalars, Slots& slots, const StateValues& state,
                     bool next) = 0;

  // A log-probability for each entry of the call.
  virtual const float* logprobs(uint32_t copy) const = 0;
  // 1 where an entry's label is the most likely token; empty where the runner does not say.
  virtual const std::vector<float>& is_argmax() const = 0;
};

}  // namespace zoexport
