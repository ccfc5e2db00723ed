// From label log-probabilities to losses (docs/session.md).
#pragma once

#include <cstdint>
#include <vector>

#include "session/data/batching.h"

namespace zoexport {

// The log-probabilities of one copy of the model, summed by candidate.
class CandidateScores {
 public:
  explicit CandidateScores(const Layout& layout) : layout_(layout), sums_(layout.labels.size(), 0.0) {}

  // Adds one call's label_logprobs of this copy: a value for each of the call's entries, in order.
  void add(const Call& call, const float* logprobs);

  // The loss of example `index` of the layout.
  double loss(size_t index, int32_t kind) const;
  // The mean over the layout's examples.
  double mean_loss(int32_t kind) const;
  // By candidate: the derivative of mean_loss() by the log-probability of each of its entries. Those of the full loss do
  // not depend on the scores.
  std::vector<double> weights(int32_t kind) const;
  // Whether the right candidate of an example has the highest score (the first of equal ones counts).
  bool right(size_t index) const;

 private:
  const Layout& layout_;
  std::vector<double> sums_;
};

}  // namespace zoexport
