// The last stage on a call: gathers the rows at label positions and scores them, some at a time. That of a whole model
// gathers them itself, and scores all at once.
#pragma once

#include <vector>

#include "session/programs/stages.h"

namespace zoexport {

class Head {
 public:
  // `pass`: what scores, kForward or kEvaluate.
  Head(Stages& stages, Pass pass);

  // Scores every entry of the call, of so many copies. `values` has what the head takes beside labels; its activation are
  // the (copies, rows, length, hidden) floats of the last stage. Writes (copies, call.label_tokens.size()) values to both
  // (is_argmax: where the program gives it). Entries of all copies share the head's calls.
  Status score(const Call& call, StageValues values, uint32_t copies, float* logprobs, float* is_argmax);

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
  Pass pass_;
  size_t chunk_;
  std::vector<float> rows_;           // (label_rows, hidden)
  std::vector<float> row_gradients_;  // likewise
  std::vector<int64_t> tokens_;
  std::vector<float> weights_;
  std::vector<float> logprobs_;
  std::vector<float> is_argmax_;
};

}  // namespace zoexport
