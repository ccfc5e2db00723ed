// Decides when a run has left the range of losses it started in (docs/session.md).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

namespace zoexport {

class DivergenceGuard {
 public:
  static constexpr double kFactor = 10;
  static constexpr uint64_t kStreak = 5;
  static constexpr size_t kBaselineSteps = 5;
  // A baseline near zero would make noise look like divergence.
  static constexpr double kLeastBaseline = 1e-3;

  // Takes the loss of `step`; returns the first step of the bad run when the run is to stop.
  std::optional<uint64_t> observe(uint64_t step, float loss) {
    const bool bad = !std::isfinite(loss) || (!first_.empty() && loss > kFactor * baseline());
    if (!bad) {
      streak_ = 0;
      if (first_.size() < kBaselineSteps) {
        first_.push_back(loss);
      }
      return std::nullopt;
    }
    if (streak_++ == 0) {
      bad_since_ = step;
    }
    return !std::isfinite(loss) || streak_ >= kStreak ? std::optional<uint64_t>(bad_since_) : std::nullopt;
  }

  // The median of the first good losses.
  double baseline() const {
    std::vector<double> sorted = first_;
    if (sorted.empty()) {
      return kLeastBaseline;
    }
    std::sort(sorted.begin(), sorted.end());
    const size_t middle = sorted.size() / 2;
    const double median = sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
    return std::max(median, kLeastBaseline);
  }

 private:
  std::vector<double> first_;
  uint64_t streak_ = 0;
  uint64_t bad_since_ = 0;
};

}  // namespace zoexport
