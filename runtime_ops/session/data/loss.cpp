#include "session/data/loss.h"

#include <algorithm>
#include <cmath>

namespace zoexport {
namespace {

// A mean log-probability counts as no nearer to 0, where odds are infinite, than float32 can be to a probability of 1.
constexpr double kNearestToCertain = -5.9604644775390625e-8;  // -2^-24

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// -log sigmoid(x), without overflow.
double minus_log_sigmoid(double x) { return std::max(-x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

}  // namespace

void CandidateScores::add(const Call& call, const float* logprobs) {
  for (size_t i = 0; i < call.owners.size(); ++i) {
    sums_[call.owners[i]] += static_cast<double>(logprobs[i]);
  }
}

CandidateScores::Pair CandidateScores::pair_of(const Layout::Example& example) {
  return {example.first + example.target, example.first + 1 - example.target};
}

double CandidateScores::loss(const Layout::Example& example, const Objective& objective, double* slopes) const {
  switch (objective.loss) {
    case ZO_LOSS_CHOICES:
      return choices(example, objective.choices, slopes);
    case ZO_LOSS_DPO:
      return dpo(example, objective.beta, slopes);
    case ZO_LOSS_ORPO:
      return orpo(example, objective.beta, slopes);
    default: {
      const uint32_t right = example.first + example.target;
      if (slopes != nullptr) {
        slopes[right] = -1.0 / layout_.labels[right];
      }
      return -mean(right);
    }
  }
}

double CandidateScores::choices(const Layout::Example& example, int32_t score, double* slopes) const {
  const uint32_t end = example.first + example.count, right = example.first + example.target;
  double highest = -HUGE_VAL;
  for (uint32_t i = example.first; i < end; ++i) {
    highest = std::max(highest, scored(i, score));
  }
  double total = 0;
  for (uint32_t i = example.first; i < end; ++i) {
    total += std::exp(scored(i, score) - highest);
  }
  for (uint32_t i = example.first; slopes != nullptr && i < end; ++i) {
    const double slope = std::exp(scored(i, score) - highest) / total - (i == right ? 1.0 : 0.0);
    slopes[i] = score == ZO_CHOICES_MEAN ? slope / layout_.labels[i] : slope;
  }
  return highest + std::log(total) - scored(right, score);
}

// Rafailov et al., "Direct Preference Optimization" (2023), equation 7: -log sigmoid of beta times the difference of both
// answers' log-ratios to the reference model.
double CandidateScores::dpo(const Layout::Example& example, double beta, double* slopes) const {
  const auto [chosen, rejected] = pair_of(example);
  const double ratio = (sums_[chosen] - layout_.reference[chosen]) - (sums_[rejected] - layout_.reference[rejected]);
  if (slopes != nullptr) {
    slopes[chosen] = -beta * sigmoid(-beta * ratio);
    slopes[rejected] = -slopes[chosen];
  }
  return minus_log_sigmoid(beta * ratio);
}

// Hong et al., "ORPO: Monolithic Preference Optimization without Reference Model" (2024), equations 6 and 7: the chosen
// answer's own loss, and lambda times -log sigmoid of the log of the ratio of both answers' odds P / (1 - P), P being the
// geometric mean of an answer's probabilities (equation 3).
double CandidateScores::orpo(const Layout::Example& example, double beta, double* slopes) const {
  const auto [chosen, rejected] = pair_of(example);
  const double preferred = std::min(mean(chosen), kNearestToCertain);
  const double other = std::min(mean(rejected), kNearestToCertain);
  // log(1 - P) = log(-expm1(log P)), and the log-odds' derivative by log P is 1 / (1 - P).
  const double ratio = preferred - std::log(-std::expm1(preferred)) - (other - std::log(-std::expm1(other)));
  if (slopes != nullptr) {
    const double slope = -beta * sigmoid(-ratio);
    slopes[chosen] = (-1.0 - slope / std::expm1(preferred)) / layout_.labels[chosen];
    slopes[rejected] = slope / std::expm1(other) / layout_.labels[rejected];
  }
  return -mean(chosen) + beta * minus_log_sigmoid(ratio);
}

double CandidateScores::mean_loss(const Objective& objective) const {
  double total = 0;
  for (size_t i = 0; i < layout_.examples.size(); ++i) {
    total += loss(i, objective);
  }
  return total / static_cast<double>(layout_.examples.size());
}

std::vector<double> CandidateScores::weights(const Objective& objective) const {
  std::vector<double> result(layout_.labels.size(), 0.0);
  for (const Layout::Example& example : layout_.examples) {
    loss(example, objective, result.data());
  }
  for (double& weight : result) {
    weight /= static_cast<double>(layout_.examples.size());
  }
  return result;
}

double CandidateScores::margin(size_t index, const Objective& objective) const {
  const auto [chosen, rejected] = pair_of(layout_.examples[index]);
  if (objective.loss == ZO_LOSS_DPO) {
    return objective.beta *
           ((sums_[chosen] - layout_.reference[chosen]) - (sums_[rejected] - layout_.reference[rejected]));
  }
  return objective.beta * (mean(chosen) - mean(rejected));
}

bool CandidateScores::right(size_t index, const Objective& objective) const {
  if (of_pairs(objective.loss)) {
    return margin(index, objective) > 0;
  }
  const Layout::Example& example = layout_.examples[index];
  uint32_t best = example.first;
  for (uint32_t i = best + 1; i < example.first + example.count; ++i) {
    best = scored(i, objective.choices) > scored(best, objective.choices) ? i : best;
  }
  return best == example.first + example.target;
}

}  // namespace zoexport
