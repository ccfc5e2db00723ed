// The last stage on a call: gathers the rows at label positions and scores them in chunks. The head of a whole model
// gathers them itself, and scores all at once.
#pragma once

#include <vector>

#include "session/programs/stages.h"

namespace zoexport {

class Head {
 public:
  // `pass`: what scores, kForward or kEvaluate.
  Head(Stages& stages, Pass pass);

  // Score every entry of the call, for all copies. `values` has the head's inputs except labels; its activation is the
  // last stage's output, floats of shape (copies, rows, length, hidden). Writes (copies, call.label_tokens.size())
  // values to both outputs (is_argmax: if the program gives it). Entries of all copies share the head's calls.
  Status score(const Call& call, StageValues values, uint32_t copies, float* logprobs, float* is_argmax);

  // Score, and write the loss's gradient by the activation; `weights` is the loss's derivative by each entry's
  // log-probability. For each chunk of entries, `state_gradient` gives the address for a slot's gradient, and `done` is
  // called once it is written.
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
  std::vector<float> row_gradients_;  // (label_rows, hidden)
  std::vector<int64_t> tokens_;
  std::vector<float> weights_;
  std::vector<float> logprobs_;
  std::vector<float> is_argmax_;
};

}  // namespace zoexport
