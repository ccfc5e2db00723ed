#include "job/loss_history.h"

namespace zoexport {

static_assert(LossHistory::kMost % 2 == 0, "points are merged by twos");

void LossHistory::add(uint64_t step, double loss) {
  sum_ += loss;
  if (++count_ < each_) {
    return;
  }
  points_.push_back({step, sum_ / static_cast<double>(count_)});
  sum_ = 0;
  count_ = 0;
  if (points_.size() < kMost) {
    return;
  }
  for (size_t i = 0; i < kMost / 2; ++i) {
    const LossPoint &first = points_[2 * i], &second = points_[2 * i + 1];
    points_[i] = {second.step, (first.loss + second.loss) / 2};
  }
  points_.resize(kMost / 2);
  each_ *= 2;
}

}  // namespace zoexport
