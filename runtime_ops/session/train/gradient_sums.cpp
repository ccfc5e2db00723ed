#include "session/train/gradient_sums.h"

#include <algorithm>

namespace zoexport {

Status GradientSums::begin() {
  const Slots& slots = stages_.slots();
  if (!file_) {
    size_t most = 0;
    for (size_t stage = 0; stage < stages_.count(); ++stage) {
      size_t bytes = 0;
      for (size_t slot : stages_.trainable(stage)) {
        bytes += slots.spec(slot).bytes();
      }
      most = std::max(most, bytes);
    }
    const std::string& folder = stages_.folder();
    ZO_ASSIGN(file, SharedFile::unnamed(folder.empty() ? temporary_folder() : folder, slots.trainable_bytes() + most));
    file_.emplace(std::move(file));
  }
  begun_.assign(slots.size(), false);
  waiting_.clear();
  used_ = 0;
  return {};
}

float* GradientSums::target(size_t slot) {
  if (!begun_[slot]) {
    begun_[slot] = true;
    return at(stages_.slots().offset(slot));
  }
  float* room = at(stages_.slots().trainable_bytes() + used_);
  used_ += stages_.slots().spec(slot).bytes();
  waiting_.push_back({slot, room});
  return room;
}

void GradientSums::add() {
  for (const Waiting& waiting : waiting_) {
    float* sum = at(stages_.slots().offset(waiting.slot));
    for (size_t i = 0; i < stages_.slots().spec(waiting.slot).elements; ++i) {
      sum[i] += waiting.values[i];
    }
  }
  waiting_.clear();
  used_ = 0;
}

const float* GradientSums::sum(size_t slot) const { return at(stages_.slots().offset(slot)); }

}  // namespace zoexport
