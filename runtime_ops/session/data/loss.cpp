#include "session/data/loss.h"

#include <algorithm>
#include <cmath>

namespace zoexport {

void CandidateScores::add(const Call& call, const float* logprobs) {
  for (size_t i = 0; i < call.owners.size(); ++i) {
    sums_[call.owners[i]] += static_cast<double>(logprobs[i]);
  }
}

double CandidateScores::loss(size_t index, int32_t kind) const {
  const Layout::Example& example = layout_.examples[index];
  const uint32_t right = example.first + example.target;
  if (kind == ZO_LOSS_FULL) {
    return -sums_[right] / layout_.labels[right];
  }
  const auto begin = sums_.begin() + example.first;
  const double highest = *std::max_element(begin, begin + example.count);
  double total = 0;
  for (uint32_t i = 0; i < example.count; ++i) {
    total += std::exp(sums_[example.first + i] - highest);
  }
  return highest + std::log(total) - sums_[right];
}

double CandidateScores::mean_loss(int32_t kind) const {
  double total = 0;
  for (size_t i = 0; i < layout_.examples.size(); ++i) {
    total += loss(i, kind);
  }
  return total / static_cast<double>(layout_.examples.size());
}

std::vector<double> CandidateScores::weights(int32_t kind) const {
  std::vector<double> result(layout_.labels.size(), 0.0);
  const auto examples = static_cast<double>(layout_.examples.size());
  for (const Layout::Example& example : layout_.examples) {
    const uint32_t right = example.first + example.target;
    if (kind == ZO_LOSS_FULL) {
      result[right] = -1.0 / (layout_.labels[right] * examples);
      continue;
    }
    const auto begin = sums_.begin() + example.first;
    const double highest = *std::max_element(begin, begin + example.count);
    double total = 0;
    for (uint32_t i = 0; i < example.count; ++i) {
      total += std::exp(sums_[example.first + i] - highest);
    }
    for (uint32_t i = 0; i < example.count; ++i) {
      const double share = std::exp(sums_[example.first + i] - highest) / total;
      result[example.first + i] = (share - (i == example.target ? 1.0 : 0.0)) / examples;
    }
  }
  return result;
}

bool CandidateScores::right(size_t index) const {
  const Layout::Example& example = layout_.examples[index];
  const auto begin = sums_.begin() + example.first;
  return std::max_element(begin, begin + example.count) - begin == static_cast<std::ptrdiff_t>(example.target);
}

}  // namespace zoexport
