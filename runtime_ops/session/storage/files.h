// Files that are either whole or absent, mappings, and a folder lock.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "session/result.h"
#include "session/storage/faults.h"
#include "session/storage/open_file.h"

namespace zoexport {

std::string join(const std::string& folder, const std::string& name);
// The folder that a path is in.
std::string folder_of(const std::string& path);
bool exists(const std::string& path);

// A failure of the operating system on `path`, with its own words for `error` (an errno).
Failure system_failure(zo_status code, const std::string& path, int error, bool writing);

// The size of a regular file.
Result<uint64_t> file_size(const std::string& path, zo_status code);

// The whole of a small file.
Result<std::string> read_file(const std::string& path, zo_status code);

// Passes `bytes` bytes of a file from `first` on to `take`, in pieces; fewer are a failure.
Status read_range(const std::string& path, uint64_t first, uint64_t bytes, zo_status code,
                  const std::function<void(const uint8_t* data, size_t size)>& take);

// The SHA-256 of a file, read in pieces so that its pages do not count as this process's memory.
Result<std::string> hash_file(const std::string& path, zo_status code);

// Set the content of `path`: write and sync a temporary file in the same folder (temporary_name), rename it, and sync
// the folder. On failure the previous file stays and nothing else is left. Exception: if syncing the folder fails,
// either file may be there after a power loss.
Status write_file(const std::string& path, const std::function<bool(int descriptor)>& write);
// Calls a function of the system again where a signal interrupted it.
template <typename Call>
int uninterrupted(Call call) {
  int result;
  do {
    result = call();
  } while (result != 0 && errno == EINTR);
  return result;
}

// Writes all of it; false with errno set on failure. For use inside write_file.
bool write_all(int descriptor, const void* data, size_t size);
// Under what name write_file writes what becomes `name`.
std::string temporary_name(const std::string& name);
// Waits until what was written is on the disk, in the drive's own cache not excepted; not 0 with errno set on failure. After a
// failure the system may have dropped what it could not write and call it written: no later call makes up for it.
int sync_data(int descriptor);
// Waits until the names in a folder are on the disk.
Status sync_folder(const std::string& folder);

// Makes a folder and those above it, and syncs what names them. `made` (may be null) gets those that were not there, outermost
// first, also on failure.
Status make_folder(const std::string& path, std::vector<std::string>* made = nullptr);

// Makes a file that another hand wrote durable.
Status sync_file(const std::string& path);
// Renames within a folder, and syncs that.
Status rename_file(const std::string& from, const std::string& to);

// A mapping of a file, or of a part of it; of no bytes it is a null pointer. Owns the mapping, not the file.
class MappedFile {
 public:
  // Effect of a write to the mapping; this library never writes to it.
  enum class Writes {
    kFault,        // it ends the process
    kPrivateCopy,  // it changes a page of this process alone: for what a program file of a stranger may write
  };
  static Result<MappedFile> of(const OpenFile& file, Writes writes = Writes::kFault);
  static Result<MappedFile> of(const OpenFile& file, uint64_t offset, size_t size, Writes writes = Writes::kFault);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  MappedFile(const uint8_t* data, size_t size, size_t before, MappingGuard guard)
      : data_(data), size_(size), before_(before), guard_(std::move(guard)) {}
  const uint8_t* data_;
  size_t size_;
  size_t before_;  // bytes that are mapped before the data, as a mapping begins at a page
  MappingGuard guard_;
};

// An exclusive flock on a file, which a dead process does not hold, and the file's short content. Released by the
// destructor.
class FileLock {
 public:
  // Create the file if needed, and wait `seconds` for the lock; nothing if it is still held then.
  static Result<std::optional<FileLock>> acquire(const std::string& path, double seconds);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

  // Return at most 1 kB; empty if the file is unreadable.
  std::string read() const;
  Status write(const std::string& content);
  // Sets the file's times to now.
  void touch() const;

 private:
  FileLock(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  int descriptor_;
  std::string path_;
};

// The lock of a state folder: taken at once or refused, with the holder's process in the message.
class FolderLock {
 public:
  static Result<FolderLock> acquire(const std::string& path);

 private:
  explicit FolderLock(FileLock lock) : lock_(std::move(lock)) {}
  FileLock lock_;
};

// Return the cache folder for files that can be recreated; empty if the environment names no folder.
std::string default_cache_folder();

}  // namespace zoexport
