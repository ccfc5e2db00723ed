// The state folder of a run (docs/formats.md): who it belongs to, its lock, its log and its snapshots.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "session/manifest/manifest.h"
#include "session/state/evaluations.h"
#include "session/state/reference_scores.h"
#include "session/state/run_record.h"
#include "session/storage/files.h"
#include "session/storage/safetensors.h"
#include "session/storage/trajectory.h"

namespace zoexport {

// Return the number of steps between snapshots, given the random words to repeat one update: 100, or fewer, down to 10,
// if a resumed run would repeat for longer than a quarter of a minute on one core. It depends on the bundle alone, so
// that every host keeps the same snapshots.
uint64_t snapshot_every(uint64_t words);

struct AttachOptions {
  bool read_only = false;  // it must exist, is not locked and not written
  std::optional<uint64_t> seed;
  bool recover = false;          // go on from the last good record of a damaged log
  bool change_settings = false;  // go on with other settings or data
  bool last = false;             // for reading: the values of the last step, also where the run keeps its best
};

// Return whether a folder holds a state.
bool holds_state(const std::string& path);

// Files of a state.
inline std::string log_path(const std::string& folder) { return join(folder, "trajectory.log"); }
inline std::string run_path(const std::string& folder) { return join(folder, "run.json"); }
inline std::string evaluations_path(const std::string& folder) { return join(folder, "evaluations.json"); }
inline std::string initial_path(const std::string& folder) { return join(folder, "initial.safetensors"); }

// Content of state.json.
struct Identity {
  std::string bundle_id;
  std::string method;
  uint64_t seed;
};
Result<Identity> read_identity(const std::string& folder);

// Steps of the snapshots in a folder, newest first.
std::vector<uint64_t> snapshots_in(const std::string& folder);

class StateFolder {
 public:
  struct Opened;

  // Opens the state in `path` for `manifest` (see zo_session_attach). `num_queries` is the gradients of a record. A state that
  // this makes is removed again with this object, unless it was wanted or has begun.
  static Result<Opened> attach(const std::string& path, const AttachOptions& options, const Manifest& manifest,
                               uint32_t queries);

  bool writable() const { return log_.has_value(); }
  const std::string& path() const { return path_; }
  std::string initial_path() const { return zoexport::initial_path(path_); }
  std::string work_path() const { return join(path_, "work.bin"); }
  std::string run_path() const { return zoexport::run_path(path_); }
  std::string reference_path() const { return join(path_, "reference.json"); }

  // Set whether a state that was made here, and has no steps yet, stays.
  void want(bool wanted);

  Status append(const Record& record);
  Status sync_log() { return log_->sync(); }
  // Drops the records after the first `records`, and the snapshots of more updates.
  Status cut(uint64_t records);
  // The log as it is now, which another process may be writing.
  Result<std::vector<Record>> read_records() const;

  std::vector<uint64_t> snapshots() const { return snapshots_in(path_); }
  // A snapshot of this run whose content is whole, or a failure.
  Result<SafeTensors> read_snapshot(uint64_t steps);
  // Writes one, and then removes all but the two newest and that of `kept` steps.
  Status write_snapshot(uint64_t steps, const std::vector<TensorToWrite>& tensors, std::optional<uint64_t> kept);
  // The values of an imported adapter.
  Result<SafeTensors> read_initial() const;
  Status write_initial(const std::vector<TensorToWrite>& tensors);
  Status write_run(const RunRecord& run);
  Status write_evaluations(const Evaluations& evaluations);
  // A state that was made for them stays.
  Status write_reference(const std::vector<ReferenceScores>& scores);

 private:
  // A state that is being made: the files and folders to remove again on failure.
  struct Made {
    std::string path;
    std::vector<std::string> files;  // names that were not there before
    std::vector<std::string> folders;
    bool wanted = false;
    explicit Made(const std::string& path);
    ~Made();
  };
  StateFolder(std::string path, std::string bundle_id, uint32_t queries)
      : path_(std::move(path)), bundle_id_(std::move(bundle_id)), queries_(queries) {}
  Status create(uint64_t seed, const Manifest& manifest);
  // Reads the log of a state with that seed; for training, what follows its good records is cut off, or refused.
  Result<std::vector<Record>> open_log(const AttachOptions& options, const LogHeader& expected);
  Result<std::string> keep_damaged(const std::string& bytes) const;
  std::string snapshot_path(uint64_t steps) const;
  void remove_snapshots_after(uint64_t steps);
  void remove_leftovers() const;

  std::string path_;
  std::string bundle_id_;
  uint32_t queries_;
  LogDigest digest_;
  std::optional<FolderLock> lock_;
  std::optional<LogFile> log_;
  std::unique_ptr<Made> made_;  // after the lock: what it removes, it removes under it
};

struct StateFolder::Opened {
  StateFolder folder;
  uint64_t seed;
  std::vector<Record> records;
  std::optional<RunRecord> run;            // of a run that has begun
  std::optional<Evaluations> evaluations;  // those of the steps that the log has
};

}  // namespace zoexport
