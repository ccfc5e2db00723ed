// Decides when a run has left the range of losses it started in, or is about to (docs/architecture.md, "The session").
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "session/storage/trajectory.h"

namespace zoexport {

// Why a run is to stop, and how many of its steps are still good.
struct Divergence {
  uint64_t kept = 0;
  std::string found;
  std::string expected;
};

class DivergenceGuard {
 public:
  static constexpr double kFactor = 10;
  static constexpr size_t kStreak = 5;
  static constexpr size_t kBaselineSteps = 5;
  // A baseline near zero would make noise look like divergence.
  static constexpr double kLeastBaseline = 1e-3;

  // Takes the record of a step, and by how much its update lowers the loss to first order; returns a verdict when the run
  // is to stop.
  std::optional<Divergence> observe(const Record& record, double promised) {
    const std::optional<Divergence> high = losses_too_high(record);
    return high ? high : updates_too_large(record, promised);
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
  // A bad loss is the work of the update before it.
  static uint64_t before_update_of(uint64_t step) { return step > 0 ? step - 1 : 0; }

  std::optional<Divergence> losses_too_high(const Record& record) {
    const double limit = kFactor * baseline();
    const std::string expected = "losses below " + std::to_string(limit) + ", ten times those of the first steps";
    const bool finite = std::isfinite(record.loss);
    if (finite && (first_.empty() || record.loss <= limit)) {
      streak_ = 0;
      if (first_.size() < kBaselineSteps) {
        first_.push_back(record.loss);
      }
      return std::nullopt;
    }
    if (streak_++ == 0) {
      high_since_ = record.step;
    }
    if (!finite) {
      return Divergence{before_update_of(high_since_), "a loss that is not finite", expected};
    }
    if (streak_ < kStreak) {
      return std::nullopt;
    }
    return Divergence{
        before_update_of(high_since_),
        "a loss of " + std::to_string(record.loss) + ", above the limit since step " + std::to_string(high_since_),
        expected};
  }

  // No loss falls below zero, so updates that promise many times the whole loss step far beyond what the projected
  // gradients know about. Once or twice the loss is what small models with a loss over a few choices live with, hence the
  // factor; the state goes back before all of these.
  std::optional<Divergence> updates_too_large(const Record& record, double promised) {
    recent_.push_back({record.step, promised, std::max<double>(record.loss, kLeastBaseline)});
    if (recent_.size() > kStreak) {
      recent_.pop_front();
    }
    double promises = 0, losses = 0;
    std::optional<uint64_t> since;
    for (const Step& step : recent_) {
      promises += step.promised;
      losses += step.loss;
      if (!since && step.promised > step.loss) {
        since = step.number;
      }
    }
    if (recent_.size() < kStreak || !(promises > kFactor * losses)) {
      return std::nullopt;
    }
    return Divergence{*since,
                      "updates that were to lower the loss by " + std::to_string(promises / kStreak) +
                          " a step, more than ten times all of it",
                      "updates in proportion to the loss, " + std::to_string(losses / kStreak) + " on average over " +
                          std::to_string(kStreak) + " steps"};
  }

  struct Step {
    uint64_t number;
    double promised;
    double loss;
  };

  std::vector<double> first_;
  size_t streak_ = 0;
  uint64_t high_since_ = 0;
  std::deque<Step> recent_;
};

}  // namespace zoexport
