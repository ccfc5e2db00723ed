// work.bin of a state folder: two copies of what a first-order method trains, mapped and written in place
// (docs/formats.md, "Snapshots and work.bin").
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "session/storage/shared_file.h"

namespace zoexport {

// The system's identifier of the current boot; empty if unavailable. Data that a process wrote into a mapping
// outlives the process, but not a restart of the system.
std::string boot_id();

class WorkFile {
 public:
  static constexpr uint64_t kNoSteps = UINT64_MAX;

  // A file with two copies of `bytes` zeros, whole floats, in place of what is at `path`; not valid yet.
  static Result<WorkFile> create(const std::string& path, const std::string& bundle_id, size_t bytes);
  // Create such a file without a name, in `folder`.
  static Result<WorkFile> unnamed(const std::string& folder, size_t bytes);
  // One that a process left behind since the system started: whole, of this bundle, and no copy of another file. Nothing
  // where that is not certain.
  static std::optional<WorkFile> reopen(const std::string& path, const std::string& bundle_id, size_t bytes,
                                        bool writable);

  // Copy 0 or 1.
  uint8_t* copy(int copy) const;
  // The steps whose result a copy is; kNoSteps while it is written.
  uint64_t steps(int copy) const;
  void set_steps(int copy, uint64_t steps);
  // Set whether a later process may trust the steps that the copies claim.
  void set_valid(bool valid);

 private:
  struct Header;
  WorkFile(SharedFile file, size_t bytes) : file_(std::move(file)), bytes_(bytes) {}
  Header& header() const { return *reinterpret_cast<Header*>(file_.data()); }
  static Result<SharedFile> filled(Result<SharedFile> file, const std::string& bundle_id, size_t bytes);

  SharedFile file_;
  size_t bytes_;  // of a copy
};

}  // namespace zoexport
