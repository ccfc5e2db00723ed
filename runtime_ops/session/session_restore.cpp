// The part of a session that brings its slots' values back: from the initial ones, snapshots, records, or the copies that
// another process left.
#include <algorithm>
#include <cstring>

#include "session/session.h"

namespace zoexport {

Status Session::restore_initial(SlotKind kind) {
  const auto chosen = [&](size_t slot) {
    return kind == SlotKind::kAll || (kind == SlotKind::kTrainable) == slots_->trainable(slot);
  };
  for (size_t i = 0; i < slots_->size(); ++i) {
    if (chosen(i) && slots_->current(i) != slots_->bundled(i)) {
      slots_->set(i, slots_->bundled(i));
    }
  }
  if (kind == SlotKind::kAll) {
    slots_->clear_moments();
  }
  if (state_ && exists(state_->initial_path())) {
    ZO_ASSIGN(file, SafeTensors::open(state_->initial_path(), ZO_STATE_ERROR));
    if (file.metadata("crc32") != crc_text(file.data_crc())) {
      return Failure{ZO_STATE_ERROR, state_->initial_path(), "damaged values", "the values of an imported adapter",
                     "Restore the state from a copy, or import the adapter again into another state."};
    }
    ZO_TRY(slots_->set_from(file, kind, state_->initial_path()));
  }
  for (const auto& [slot, values] : written_) {
    if (chosen(slot)) {
      slots_->set(slot, values.data());
    }
  }
  return {};
}

Status Session::restore(uint64_t updates) {
  // A copy that is being changed is nobody's to resume from.
  slots_->copies().set_current_steps(WorkFile::kNoSteps);
  slots_->copies().set_next_steps(WorkFile::kNoSteps);
  ZO_TRY(restore_initial(SlotKind::kAll));
  applied_ = 0;
  snapshot_.reset();
  for (uint64_t steps : state_ ? state_->snapshots() : std::vector<uint64_t>()) {
    // One of `updates + 1` updates serves too where that is all records: then nothing is pending.
    if (steps > updates && steps != records_.size()) {
      continue;
    }
    const auto file = state_->read_snapshot(steps);
    // A damaged snapshot only costs time: an older one, or the initial values, serve as well.
    if (file.ok() && slots_->set_from(*file, SlotKind::kTrainable, state_->path()).ok()) {
      applied_ = steps;
      snapshot_ = steps;
      break;
    }
  }
  slots_->copies().set_current_steps(applied_);
  return deferred() && applied_ < updates ? replay(applied_, updates) : Status();
}

Status Session::replay(uint64_t from, uint64_t to) {
  for (uint64_t i = from; i < to; ++i) {
    for (size_t slot = 0; slot < slots_->size(); ++slot) {
      if (slots_->trainable(slot)) {
        ZO_TRY(trainer_->apply(records_[i], run_.seed, slots_->spec(slot), slots_->current(slot),
                               slots_->mutable_current(slot)));
      }
    }
  }
  applied_ = to;
  return {};
}

Status Session::make_room() {
  if (!slots_->held()) {
    const std::string folder = scratch_folder_.empty() ? temporary_folder() : scratch_folder_;
    ZO_ASSIGN(file, WorkFile::unnamed(folder, slots_->copy_bytes()));
    slots_->hold(TwoCopies(std::move(file), 0), /*keep=*/false);
    slots_->copies().set_current_steps(0);
  }
  return {};
}

Status Session::drop_records_after(uint64_t steps) {
  if (state_ && state_->writable() && steps < records_.size()) {
    ZO_TRY(state_->log().cut(steps));
  }
  records_.resize(std::min<size_t>(records_.size(), steps));
  return {};
}

Status Session::resume() {
  if (in_file() && state_->writable()) {
    scratch_folder_ = state_->path();
  }
  if (!deferred()) {
    return state_->writable() ? resume_copies() : read_copies();
  }
  ZO_TRY(make_room());
  return restore(records_.empty() ? 0 : records_.size() - 1);
}

Status Session::resume_copies() {
  const uint64_t steps = records_.size();
  auto work = WorkFile::reopen(state_->work_path(), manifest_.bundle_id, slots_->copy_bytes(), /*writable=*/true);
  // Without a step the copies may hold an adapter whose import was cut short.
  for (int copy = 0; work && steps > 0 && copy < 2; ++copy) {
    if (work->steps(copy) == steps) {
      slots_->hold(TwoCopies(std::move(*work), copy), /*keep=*/true);
      applied_ = steps;
      return restore_initial(SlotKind::kFrozen);
    }
  }
  if (!work) {
    ZO_ASSIGN(made, WorkFile::create(state_->work_path(), manifest_.bundle_id, slots_->copy_bytes()));
    work.emplace(std::move(made));
  }
  slots_->hold(TwoCopies(std::move(*work), 0), /*keep=*/true);
  ZO_TRY(restore(steps));
  ZO_TRY(drop_records_after(applied_));
  slots_->copies().set_valid(true);
  return {};
}

Status Session::read_copies() {
  constexpr int kTries = 5;
  const size_t bytes = slots_->copy_bytes();
  slots_->drop_moments();
  ZO_ASSIGN(room, WorkFile::unnamed(temporary_folder(), slots_->copy_bytes()));
  slots_->hold(TwoCopies(std::move(room), 0), /*keep=*/true);
  for (int i = 0; i < kTries; ++i) {
    const uint64_t steps = records_.size();
    const auto work = WorkFile::reopen(state_->work_path(), manifest_.bundle_id, bytes, /*writable=*/false);
    bool copied = false;
    for (int copy = 0; work && steps > 0 && !copied && copy < 2; ++copy) {
      if (work->steps(copy) == steps) {
        std::memcpy(slots_->copies().current(), work->copy(copy), slots_->copy_bytes());
        copied = true;
      }
    }
    // The process that trains overwrites a copy only after a record more: an unchanged log means that it was whole.
    ZO_ASSIGN(records, state_->read_records());
    const bool same = records.size() == records_.size() &&
                      (records.empty() || encode_record(records.back()) == encode_record(records_.back()));
    records_ = std::move(records);
    if (same && copied) {
      applied_ = steps;
      return restore_initial(SlotKind::kFrozen);
    }
    if (same) {
      break;
    }
  }
  ZO_TRY(restore(records_.size()));
  return drop_records_after(applied_);
}

Status Session::go_back() {
  const uint64_t steps = records_.size();
  if (applied_ == steps) {
    return {};
  }
  if (slots_->copies().next_steps() == steps) {
    slots_->advance();
    slots_->copies().set_next_steps(WorkFile::kNoSteps);
    applied_ = steps;
    snapshot_.reset();
    return {};
  }
  ZO_TRY(restore(steps));
  return drop_records_after(applied_);
}

}  // namespace zoexport
