// The losses of a run for a chart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zoexport {

// The mean loss of the steps from the point before to `step`.
struct LossPoint {
  uint64_t step;
  double loss;
};

// Fewer than kMost points for any number of steps: at kMost, each two neighbors become one point, their mean.
class LossHistory {
 public:
  static constexpr size_t kMost = 400;

  void add(uint64_t step, double loss);
  const std::vector<LossPoint>& points() const { return points_; }

 private:
  std::vector<LossPoint> points_;
  uint64_t each_ = 1;   // steps of a point
  uint64_t count_ = 0;  // steps of the point that is not there yet
  double sum_ = 0;
};

}  // namespace zoexport
