// The state folder of a run (docs/session.md): who it belongs to, its lock, its log and its snapshots.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "session/manifest/manifest.h"
#include "session/storage/files.h"
#include "session/storage/safetensors.h"
#include "session/storage/trajectory.h"

namespace zoexport {

// Steps from one snapshot to the next, where repeating the update of one takes so many random words: 100, and fewer, down
// to 10, where a resumed run would have to repeat for longer than a quarter of a minute of one core. A function of the
// bundle alone, so that every host keeps the same snapshots.
uint64_t snapshot_every(uint64_t words);

class StateFolder {
 public:
  struct Opened;

  // Opens the state in `path` for `manifest` (see zo_session_attach). `queries` is the gradients of a record.
  static Result<Opened> attach(const std::string& path, int32_t mode, const uint64_t* seed, const Manifest& manifest,
                               uint32_t queries);

  bool writable() const { return log_.has_value(); }
  LogFile& log() { return *log_; }
  const std::string& path() const { return path_; }
  std::string initial_path() const { return join(path_, "initial.safetensors"); }

  std::string work_path() const { return join(path_, "work.bin"); }

  // The log as it is now, which another process may be writing.
  Result<std::vector<Record>> read_records() const;
  // Steps of the snapshots that are there, newest first.
  std::vector<uint64_t> snapshots() const;
  // A snapshot of this run whose content is whole, or a failure.
  Result<SafeTensors> read_snapshot(uint64_t steps) const;
  // Writes one, and then removes all but the two newest.
  Status write_snapshot(uint64_t steps, const std::vector<TensorToWrite>& tensors);
  // Removes those of more than `steps` updates.
  void remove_snapshots_after(uint64_t steps);
  Status write_initial(const std::vector<TensorToWrite>& tensors);

 private:
  StateFolder(std::string path, std::string bundle_id) : path_(std::move(path)), bundle_id_(std::move(bundle_id)) {}
  static Status create(const std::string& path, uint64_t seed, const Manifest& manifest, uint32_t queries);
  std::string snapshot_path(uint64_t steps) const;
  void remove_leftovers() const;

  std::string path_;
  std::string bundle_id_;
  std::optional<FolderLock> lock_;
  std::optional<LogFile> log_;
};

struct StateFolder::Opened {
  StateFolder folder;
  uint64_t seed;
  std::vector<Record> records;
};

}  // namespace zoexport
