// Sampling of the next token from logits and the noise specification. All arithmetic is defined (docs/noise.md):
// with the same logits and seed, every host chooses the same token.
#pragma once

#include <cstdint>
#include <vector>

#include "session/result.h"

namespace zoexport {

struct SamplingOptions {
  double temperature = 0;  // 0: the most likely token
  uint32_t top_k = 0;      // the most likely tokens that may follow; 0: all
  double top_p = 1;        // the fewest of the most likely tokens that have so much of all probability
  double min_p = 0;        // tokens whose probability is at least this part of the most likely one's
  double repetition_penalty = 1;
  uint64_t seed = 0;
};

// Refuse options that are out of their range.
Status check_sampling(const SamplingOptions& options);

class Sampler {
 public:
  // Sample from the first `vocabulary` logits.
  Sampler(const SamplingOptions& options, size_t vocabulary);

  // A token that was in the prompt, or follows it.
  void see(int64_t token);
  // Return token number `number` after the prompt; changes the logits. If all logits are NaN, return the first token.
  int64_t choose(float* logits, uint32_t number);

 private:
  struct Candidate {
    float logit;
    int64_t token;
    double weight;
  };

  // Makes candidates begin .. end-1 the likeliest of those from `begin` on, the likeliest first, the lower token of equal ones.
  void bring_likeliest(size_t begin, size_t end);

  const SamplingOptions options_;
  const size_t vocabulary_;
  std::vector<bool> seen_;
  std::vector<Candidate> candidates_;
};

}  // namespace zoexport
