// Session: the state folder (attach, save, restore, resume) and the run's recorded settings.
#include <algorithm>
#include <cstring>

#include "session/session.h"

namespace zoexport {
namespace {

const char* const kEngine = "engine";  // key in a run's changes

}  // namespace

Status Session::attach(const std::string& folder, const AttachOptions& options) {
  if (state_ || !records_.empty() || !written_.empty()) {
    return Failure{ZO_INVALID_ARGUMENT, "state " + folder, "a session that has a state, steps or written slots",
                   "a fresh session", "Attach the state right after opening the bundle."};
  }
  if (!options.read_only && !holds_state(folder)) {
    ZO_TRY(verify_programs());
  }
  ZO_ASSIGN(opened, StateFolder::attach(folder, options, manifest_, queries()));
  kept_.reset();
  const RunSettings before = run_;
  state_.emplace(std::move(opened.folder));
  records_ = std::move(opened.records);
  recorded_ = std::move(opened.run);
  evaluations_ = std::move(opened.evaluations);
  changes_settings_ = options.change_settings;
  (void)run_.set({{"seed", opened.seed}});
  const bool best = !state_->writable() && !options.last && evaluations_ && evaluations_->settings.keep_best &&
                    evaluations_->best() != nullptr;
  Status restored = take_recorded();
  restored = !restored.ok() ? restored : best ? read_best() : resume();
  if (!restored.ok()) {
    state_.reset();
    records_.clear();
    recorded_.reset();
    evaluations_.reset();
    applied_ = 0;
    scratch_folder_.clear();
    if (in_file()) {
      slots_->let_go();
    }
    run_ = before;
    return restored;
  }
  state_->want(true);
  watch_again();
  return {};
}

Status Session::verify_programs() {
  if (!options_.engine) {
    for (const Manifest* manifest = &manifest_; manifest != nullptr; manifest = manifest->fallback.get()) {
      for (const ProgramSpec& program : manifest->programs) {
        ZO_TRY(files_.check(program.file));
      }
    }
  }
  return manifest_.weights.empty() ? Status() : files_.check(manifest_.weights);
}

// --- Recorded settings and data of the run (docs/formats.md) ---------------------------------------------------------

Status Session::take_recorded() {
  if (!recorded_) {
    return {};
  }
  const Status taken = configure(recorded_->settings);
  return taken.ok() || taken.failure().code == ZO_STATE_ERROR
             ? taken
             : Status(Failure{ZO_STATE_ERROR, state_->run_path(), taken.failure().where + ": " + taken.failure().found,
                              taken.failure().expected, kRunFix});
}

Result<RunRecord> Session::asked(const RunSettings& run, const Dataset* dataset) const {
  RunRecord now;
  now.settings = run.kept();
  if (dataset != nullptr) {
    now.data = RunData{dataset->digest(), dataset->size(), dataset->conversations()};
  }
  if (!recorded_ || records_.empty()) {
    return now;  // the run has not begun
  }
  std::vector<RunChange> changes = changes_between(*recorded_, now, records_.size());
  if (!changes_settings_) {
    ZO_TRY(check_changes(state_->path(), *recorded_, now, changes));
  }
  now.changes = recorded_->changes;
  now.changes.insert(now.changes.end(), changes.begin(), changes.end());
  now.data = now.data ? now.data : recorded_->data;
  return now;
}

Status Session::begin_run(uint64_t total_steps, const Dataset* dataset) {
  if (!state_ || !state_->writable()) {
    return {};  // nothing to record, or prepare_step refuses the step
  }
  RunSettings run = run_;
  ZO_TRY(run.set({{"total_steps", total_steps}}));
  ZO_ASSIGN(now, asked(run, dataset));
  note_engine(now);
  if (!recorded_ || encode_run(*recorded_) != encode_run(now)) {
    ZO_TRY(state_->write_run(now));
    recorded_ = std::move(now);
  }
  run_ = std::move(run);
  return {};
}

void Session::note_engine(RunRecord& run) const {
  nlohmann::json last = own_engine_;
  for (const RunChange& change : run.changes) {
    last = change.key == kEngine ? change.after : last;
  }
  if (last != manifest_.engine) {
    run.changes.push_back({records_.size(), kEngine, last, manifest_.engine});
  }
}

Status Session::check_run(const Dataset& dataset) const {
  if (!state_ || !state_->writable() || !recorded_) {
    return {};
  }
  RunSettings run = run_;
  const auto total = recorded_->settings.find("total_steps");
  ZO_TRY(run.set({{"total_steps", total != recorded_->settings.end() ? total->get<uint64_t>() : 0}}));
  const auto found = asked(run, &dataset);
  return found.ok() ? Status() : found.failure();
}

// --- Saving ----------------------------------------------------------------------------------------------------------

Status Session::write_initial_if_changed() {
  if (initial_changed_ && state_ && state_->writable()) {
    ZO_TRY(state_->write_initial(slots_->to_write(SlotKind::kAll)));
    initial_changed_ = false;
    written_.clear();
  }
  return {};
}

Status Session::save() {
  if (!state_ || !state_->writable()) {
    return Failure{ZO_STATE_ERROR, state_ ? state_->path() : "session",
                   state_ ? "a state attached for reading" : "no state folder", "a state attached for training",
                   "Attach a state folder before training."};
  }
  ZO_TRY(write_initial_if_changed());
  ZO_TRY(state_->sync_log());
  if (applied_ > 0 && snapshot_ != applied_) {
    std::optional<uint64_t> kept;
    if (const Evaluated* const found = best(); found != nullptr && evaluations_->settings.keep_best) {
      kept = deferred() ? found->step - 1 : found->step;
    }
    ZO_TRY(state_->write_snapshot(applied_, slots_->to_write(SlotKind::kTrainable), kept));
    snapshot_ = applied_;
  }
  return {};
}

// --- Restoring the slots' values: from initial values, snapshots, records, or another process's copies ---------------

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
    ZO_ASSIGN(file, state_->read_initial());
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
  // Mark both copies as invalid: no process may resume from a copy that is being changed.
  slots_->copies().set_current_steps(WorkFile::kNoSteps);
  slots_->copies().set_next_steps(WorkFile::kNoSteps);
  ZO_TRY(restore_initial(SlotKind::kAll));
  applied_ = 0;
  snapshot_.reset();
  for (uint64_t steps : state_ ? state_->snapshots() : std::vector<uint64_t>()) {
    // A snapshot after all records is also usable, even with `updates + 1` updates: then nothing is pending.
    if (steps > updates && steps != records_.size()) {
      continue;
    }
    const auto file = state_->read_snapshot(steps);
    // A damaged snapshot only costs time: an older one or the initial values work too.
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
        ZO_TRY(trainer_->apply(history(i + 1), run_.seed(), slots_->spec(slot), slots_->current(slot),
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
    ZO_TRY(state_->cut(steps));
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
  // Before the first step, the copies may hold an adapter whose import was interrupted.
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
    // The training process overwrites a copy only after another record: if the log is unchanged, the copy was complete.
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

Status Session::read_best() {
  const uint64_t steps = evaluations_->best()->step;
  records_.resize(steps);
  if (deferred()) {
    return resume();
  }
  slots_->drop_moments();
  ZO_TRY(make_room());
  ZO_TRY(restore(steps));
  if (applied_ != steps) {
    return Failure{ZO_STATE_ERROR, state_->path(), "no whole snapshot of " + std::to_string(steps) + " steps",
                   "that of the run's best evaluation",
                   "Restore it from a copy, or read the values of the last step: --last (option last)."};
  }
  return {};
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
