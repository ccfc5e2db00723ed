// The head of a split model on a call: gathers the rows at label positions and scores them, some at a time.
#pragma once

#include <vector>

#include "session/programs/stages.h"

namespace zoexport {

class SplitHead {
 public:
  explicit SplitHead(Stages& stages);

  // Scores every entry of the call from the last activation, (copies, rows, length, hidden) floats. Writes
  // (copies, call.owners.size()) values to both. Entries of all copies share the head's calls.
  Status score(const Call& call, const float* activation, uint32_t copies, const StateValues& state, float* logprobs,
               float* is_argmax);

  // Likewise, with `weights` (the loss's derivative by each entry's log-probability), and writes the loss's gradient by
  // the activation. `state_gradient` and `done` are called for each chunk of entries: where a slot's gradient goes, and
  // that it is there.
  Status gradient(const Call& call, const float* activation, const float* weights, const StateValues& state,
                  float* logprobs, float* activation_gradient, const std::function<float*(size_t)>& state_gradient,
                  const std::function<void()>& done);

 private:
  // Fills rows_ and tokens_ with the entries of all copies from `first`; those beyond the last are zero.
  size_t gather(const Call& call, const float* activation, uint32_t copies, size_t first);

  Stages& stages_;
  size_t chunk_;
  std::vector<float> rows_;           // (label_rows, hidden)
  std::vector<float> row_gradients_;  // likewise
  std::vector<int64_t> tokens_;
  std::vector<float> weights_;
  std::vector<float> logprobs_;
  std::vector<float> is_argmax_;
};

}  // namespace zoexport
