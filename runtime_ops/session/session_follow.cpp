// The part of a session that goes on by records instead of programs (zo_session_follow).
#include <algorithm>
#include <cmath>

#include "session/session.h"

namespace zoexport {
namespace {

Failure refused(const Record& record, const std::string& found, const std::string& expected) {
  return {ZO_INVALID_ARGUMENT, "record " + std::to_string(record.step), found, expected,
          "Pass the records that a session of this bundle made, in order and unchanged."};
}

}  // namespace

Status Session::check_records(const std::vector<Record>& records, DivergenceGuard& guard) const {
  for (size_t i = 0; i < records.size(); ++i) {
    const Record& record = records[i];
    const auto number = records_.size() + i;
    if (number >= UINT32_MAX || record.step != number) {
      return refused(record, "the record of step " + std::to_string(record.step), "that of step " + std::to_string(number));
    }
    const bool finite = std::all_of(record.gradients.begin(), record.gradients.end(),
                                    [](float gradient) { return std::isfinite(gradient); });
    if (!finite || !std::isfinite(record.loss)) {
      return refused(record, finite ? "a loss that is not finite" : "a projected gradient that is not finite",
                     "finite numbers");
    }
    // A schedule's last rate may be zero.
    if (!(std::isfinite(record.lr) && record.lr >= 0 && std::isfinite(record.eps) && record.eps > 0)) {
      return refused(record, "lr " + std::to_string(record.lr) + " and eps " + std::to_string(record.eps),
                     "a rate of at least 0 and a scale above 0");
    }
    if (manifest_.grid && record.eps != static_cast<float>(manifest_.grid->eps)) {
      return refused(record, "eps " + std::to_string(record.eps), std::to_string(manifest_.grid->eps));
    }
    if (const auto divergence = guard.observe(record, trainer_->promised(record))) {
      return refused(record, divergence->found, divergence->expected);
    }
  }
  return {};
}

Status Session::follow(std::vector<Record> records) {
  if (!deferred()) {
    return Failure{ZO_INVALID_ARGUMENT, "records", "a bundle of the first-order method " + manifest_.method,
                   "one whose records tell how to repeat it", "Pass on the slots' values instead."};
  }
  DivergenceGuard guard = guard_;
  ZO_TRY(check_records(records, guard));
  ZO_TRY(prepare_step());
  const uint64_t every = steps_of_a_snapshot();
  for (Record& record : records) {
    if (const Record* last = pending()) {
      for (size_t slot = 0; slot < slots_->size(); ++slot) {
        if (slots_->trainable(slot)) {
          ZO_TRY(trainer_->apply(*last, run_.seed, slots_->spec(slot), slots_->current(slot), slots_->next(slot)));
        }
      }
    }
    if (state_) {
      ZO_TRY(state_->log().append(record));
    }
    if (pending() != nullptr) {
      slots_->copies().set_next_steps(records_.size());
      slots_->advance();
    }
    applied_ = records_.size();
    (void)guard_.observe(record, trainer_->promised(record));
    records_.push_back(std::move(record));
    if (state_ && records_.size() % every == 0) {
      ZO_TRY(save());
    }
  }
  return state_ && !records.empty() ? save() : Status();
}

}  // namespace zoexport
