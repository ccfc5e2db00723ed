// From label log-probabilities to losses (docs/formats.md, "Losses").
#pragma once

#include <cstdint>
#include <vector>

#include "session/data/batching.h"
#include "session/losses.h"

namespace zoexport {

// Score of a candidate: the sum of its labels' log-probabilities, and how many of its labels are the likeliest token.
struct CandidateScore {
  double logprob = 0;
  uint32_t labels = 0;
  uint32_t argmax = 0;
};

// The log-probabilities of one copy of the model, summed by candidate. Losses of pairs need
// examples of two candidates, and ZO_LOSS_DPO the layout's reference.
class CandidateScores {
 public:
  explicit CandidateScores(const Layout& layout) : layout_(layout), sums_(layout.labels.size(), 0.0) {}

  // Adds one call's label_logprobs of this copy: a value for each of the call's entries, in order.
  void add(const Call& call, const float* logprobs);

  // By candidate of the layout.
  const std::vector<double>& sums() const { return sums_; }
  // The loss of example `index` of the layout.
  double loss(size_t index, const Objective& objective) const {
    return loss(layout_.examples[index], objective, nullptr);
  }
  // The mean over the layout's examples.
  double mean_loss(const Objective& objective) const;
  // By candidate: the derivative of mean_loss() by the log-probability of each of its entries. For the full loss, they
  // do not depend on the scores.
  std::vector<double> weights(const Objective& objective) const;
  // By how much the right candidate of a pair is preferred.
  double margin(size_t index, const Objective& objective) const;
  // Return whether the right candidate has the highest score (the first of equal ones counts), or is preferred.
  bool right(size_t index, const Objective& objective) const;

 private:
  // The two candidates of a pair, by their numbers in the layout.
  struct Pair {
    uint32_t chosen;
    uint32_t rejected;
  };
  static Pair pair_of(const Layout::Example& example);
  // The derivative of an example's loss by each entry of its candidates goes to `slopes`, which may be null.
  double loss(const Layout::Example& example, const Objective& objective, double* slopes) const;
  double choices(const Layout::Example& example, int32_t score, double* slopes) const;
  double dpo(const Layout::Example& example, double beta, double* slopes) const;
  double orpo(const Layout::Example& example, double beta, double* slopes) const;
  // Return the score of a choice: the sum or the mean of the log-probabilities of a candidate's entries.
  double scored(uint32_t candidate, int32_t score) const {
    return score == ZO_CHOICES_MEAN ? mean(candidate) : sums_[candidate];
  }
  // The mean log-probability of a candidate's entries.
  double mean(uint32_t candidate) const { return sums_[candidate] / layout_.labels[candidate]; }

  const Layout& layout_;
  std::vector<double> sums_;
};

}  // namespace zoexport
