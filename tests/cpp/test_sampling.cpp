// Which token follows: the most likely one, what cuts leave, and shares of draws against probabilities.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "check.h"
#include "session/generate/sampling.h"

using zoexport::check_sampling;
using zoexport::Sampler;
using zoexport::SamplingOptions;

namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInfinity = std::numeric_limits<float>::infinity();

int64_t chosen(const SamplingOptions& options, std::vector<float> logits, uint32_t number = 0) {
  return Sampler(options, logits.size()).choose(logits.data(), number);
}

// How often each token is chosen in so many draws.
std::map<int64_t, int> draws(SamplingOptions options, const std::vector<float>& logits, int count) {
  std::map<int64_t, int> found;
  for (int i = 0; i < count; ++i) {
    ++found[chosen(options, logits, static_cast<uint32_t>(i))];
  }
  return found;
}

void the_most_likely_token() {
  const SamplingOptions greedy;
  CHECK(chosen(greedy, {0.5f, 2.0f, -1.0f}) == 1);
  CHECK(chosen(greedy, {2.0f, 1.0f, 2.0f}) == 0);  // the lowest of equal ones
  CHECK(chosen(greedy, {kNan, 1.0f, kNan, 3.0f}) == 3);
  CHECK(chosen(greedy, {kNan, kNan}) == 0);
  CHECK(chosen(greedy, {1.0f, kInfinity, 0.0f}) == 1);
  SamplingOptions one;
  one.temperature = 1;
  one.top_k = 1;
  CHECK(chosen(one, {2.0f, 1.0f, 2.0f}) == 0);
}

void shares_follow_probabilities() {
  SamplingOptions options;
  options.temperature = 0.5;
  options.seed = 12345678901234u;
  const std::vector<float> logits = {0.1f, -0.4f, 0.7f, -3.0f, 0.7f};
  double total = 0;
  for (float logit : logits) {
    total += std::exp(double{logit} / 0.5);
  }
  const int count = 20000;
  const auto found = draws(options, logits, count);
  for (size_t i = 0; i < logits.size(); ++i) {
    const double share = std::exp(double{logits[i]} / 0.5) / total;
    const auto place = found.find(static_cast<int64_t>(i));
    const double seen = place == found.end() ? 0 : place->second;
    // Four standard deviations.
    CHECK(std::fabs(seen - count * share) <= 4 * std::sqrt(count * share * (1 - share)) + 1);
  }
  CHECK(draws(options, logits, 50) == draws(options, logits, 50));
  SamplingOptions other = options;
  other.seed = 1;
  CHECK(draws(options, logits, 50) != draws(other, logits, 50));
}

void cuts() {
  const std::vector<float> logits = {0.0f, 3.0f, 2.0f, 2.0f, -1.0f};
  SamplingOptions options;
  options.temperature = 10;  // nearly equal weights: whatever may follow does in so many draws
  const auto left = [&](const SamplingOptions& given) {
    std::vector<int64_t> tokens;
    for (const auto& [token, count] : draws(given, logits, 400)) {
      tokens.push_back(token);
    }
    return tokens;
  };
  CHECK((left(options) == std::vector<int64_t>{0, 1, 2, 3, 4}));
  SamplingOptions few = options;
  few.top_k = 2;
  CHECK((left(few) == std::vector<int64_t>{1, 2}));  // of equal ones the lower
  SamplingOptions part = options;
  part.min_p = std::exp(-0.2);
  CHECK((left(part) == std::vector<int64_t>{1, 2, 3}));
  // Weights 1, e^-0.1, e^-0.1, e^-0.3, e^-0.4 of 4.2207: the first two are 0.451 of all, three are 0.666.
  SamplingOptions mass = options;
  mass.top_p = 0.45;
  CHECK((left(mass) == std::vector<int64_t>{1, 2}));
  mass.top_p = 0.46;
  CHECK((left(mass) == std::vector<int64_t>{1, 2, 3}));
  for (const double none : {1e-9, 0.0}) {
    mass.top_p = none;
    CHECK((left(mass) == std::vector<int64_t>{1}));
  }
}

void large_vocabularies_are_cut_alike() {
  std::vector<float> logits(5000);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>((i * 7919) % 5000) * 1e-3f;
  }
  SamplingOptions options;
  options.temperature = 100;
  options.top_p = 0.5;  // some 2,500 tokens, more than are sorted at once
  float least = kInfinity;
  for (uint32_t i = 0; i < 4000; ++i) {
    least = std::min(least, logits[static_cast<size_t>(chosen(options, logits, i))]);
  }
  // exp is nearly 1 everywhere: half of all weight is a little less than the upper half of the tokens.
  CHECK(least > 2.45f && least < 2.6f);
}

void repetition() {
  SamplingOptions options;
  options.repetition_penalty = 2;
  std::vector<float> logits = {1.0f, 1.5f, -0.5f};
  Sampler sampler(options, logits.size());
  sampler.see(1);
  sampler.see(2);
  sampler.see(99);  // beyond the vocabulary
  CHECK(sampler.choose(logits.data(), 0) == 0);
  CHECK(logits[1] == 0.75f && logits[2] == -1.0f && logits[0] == 1.0f);
}

void options_out_of_range() {
  const auto refused = [](double SamplingOptions::* field, double value) {
    SamplingOptions options;
    options.*field = value;
    return !check_sampling(options).ok();
  };
  CHECK(check_sampling({}).ok());
  for (const double bad : {-0.1, double{kNan}, double{kInfinity}}) {
    CHECK(refused(&SamplingOptions::temperature, bad));
    CHECK(refused(&SamplingOptions::top_p, bad));
    CHECK(refused(&SamplingOptions::min_p, bad));
    CHECK(refused(&SamplingOptions::repetition_penalty, bad));
  }
  CHECK(!refused(&SamplingOptions::top_p, 0) && refused(&SamplingOptions::top_p, 1.1));
  CHECK(refused(&SamplingOptions::repetition_penalty, 0));
}

}  // namespace

int main() {
  the_most_likely_token();
  shares_follow_probabilities();
  cuts();
  large_vocabularies_are_cut_alike();
  repetition();
  options_out_of_range();
  return check::result();
}
