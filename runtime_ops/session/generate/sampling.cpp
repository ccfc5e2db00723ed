#include "session/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "rng/philox.h"
#include "session/decimal.h"

namespace zoexport {
namespace {

constexpr size_t kFew = 1024;  // candidates that are sorted at a time: the rest seldom counts

Failure refused(const char* where, double found, const char* expected) {
  return {ZO_INVALID_ARGUMENT, where, decimal(found), expected, "Pass such a number."};
}

// Return exp(x) for x <= 0 within 1e-15 relative, by operations that every processor rounds identically:
// x = n log(2) + r, and the series of exp(r).
double exponential(double x) {
  if (!(x > -700)) {
    return 0;
  }
  const double n = std::floor(x * 1.4426950408889634 + 0.5);
  const double r = (x - n * 0.693145751953125) - n * 1.4286068203094173e-06;
  double sum = 1;
  for (int i = 13; i > 0; --i) {
    sum = 1 + r / i * sum;
  }
  return std::ldexp(sum, static_cast<int>(n));
}

}  // namespace

Status check_sampling(const SamplingOptions& options) {
  if (!(options.temperature >= 0 && options.temperature <= 1e6)) {
    return refused("temperature", options.temperature, "a number of at least 0; 0 takes the most likely token");
  }
  if (!(options.top_p >= 0 && options.top_p <= 1)) {
    return refused("top_p", options.top_p, "a number from 0 to 1; 0 takes the most likely token");
  }
  if (!(options.min_p >= 0 && options.min_p <= 1)) {
    return refused("min_p", options.min_p, "a number from 0 to 1");
  }
  if (!(options.repetition_penalty > 0 && options.repetition_penalty <= 1e6)) {
    return refused("repetition_penalty", options.repetition_penalty, "a number above 0; 1 changes nothing");
  }
  return {};
}

Sampler::Sampler(const SamplingOptions& options, size_t vocabulary)
    : options_(options), vocabulary_(vocabulary), seen_(vocabulary, false) {}

void Sampler::see(int64_t token) {
  if (token >= 0 && static_cast<size_t>(token) < vocabulary_) {
    seen_[static_cast<size_t>(token)] = true;
  }
}

int64_t Sampler::choose(float* logits, uint32_t number) {
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  for (size_t i = 0; penalty != 1.0f && i < vocabulary_; ++i) {
    if (seen_[i]) {
      logits[i] = logits[i] > 0 ? logits[i] / penalty : logits[i] * penalty;
    }
  }
  size_t best = vocabulary_;
  for (size_t i = 0; i < vocabulary_; ++i) {
    if (!std::isnan(logits[i]) && (best == vocabulary_ || logits[i] > logits[best])) {
      best = i;
    }
  }
  if (best == vocabulary_) {
    return 0;
  }
  if (options_.temperature == 0 || options_.top_k == 1 || options_.top_p == 0 || !std::isfinite(logits[best])) {
    return static_cast<int64_t>(best);
  }
  const double greatest = logits[best];
  candidates_.clear();
  for (size_t i = 0; i < vocabulary_; ++i) {
    const double weight = exponential((logits[i] - greatest) / options_.temperature);
    if (weight > 0 && weight >= options_.min_p) {
      candidates_.push_back({logits[i], static_cast<int64_t>(i), weight});
    }
  }
  if (options_.top_k > 0 && options_.top_k < candidates_.size()) {
    bring_likeliest(0, options_.top_k);
    candidates_.resize(options_.top_k);
  }
  double total = 0;
  for (const Candidate& candidate : candidates_) {
    total += candidate.weight;
  }
  if (options_.top_p < 1) {
    const double enough = options_.top_p * total;
    size_t kept = 0, sorted = 0;
    total = 0;
    while (kept < candidates_.size() && total < enough) {
      if (kept == sorted) {
        const size_t more = std::min(candidates_.size(), sorted + kFew);
        bring_likeliest(sorted, more);
        sorted = more;
      }
      total += candidates_[kept++].weight;
    }
    candidates_.resize(kept);
  }
  // 53 bits of the stream's first two words.
  uint32_t words[4] = {0, rng::kShuffle, 1, number};
  rng::philox_block(static_cast<uint32_t>(options_.seed), static_cast<uint32_t>(options_.seed >> 32), words);
  const uint64_t bits = (words[0] | (uint64_t{words[1]} << 32)) >> 11;
  const double aim = static_cast<double>(bits) * 0x1p-53 * total;
  double sum = 0;
  for (const Candidate& candidate : candidates_) {
    sum += candidate.weight;
    if (aim < sum) {
      return candidate.token;
    }
  }
  return candidates_.back().token;
}

void Sampler::bring_likeliest(size_t begin, size_t end) {
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
  };
  const auto first = candidates_.begin() + static_cast<std::ptrdiff_t>(begin);
  const auto last = candidates_.begin() + static_cast<std::ptrdiff_t>(end);
  if (last != candidates_.end()) {
    std::nth_element(first, last, candidates_.end(), likelier);
  }
  std::sort(first, last, likelier);
}

}  // namespace zoexport
