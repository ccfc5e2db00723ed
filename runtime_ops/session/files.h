// Files that are either whole or absent, a read-only mapping, and a folder lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "session/result.h"

namespace zoexport {

std::string join(const std::string& folder, const std::string& name);
bool exists(const std::string& path);

// A failure of the operating system on `path`, with its own words for `error` (an errno).
Failure system_failure(zo_status code, const std::string& path, int error, bool writing);

// The size of a regular file.
Result<uint64_t> file_size(const std::string& path, zo_status code);

// The whole of a small file.
Result<std::string> read_file(const std::string& path, zo_status code);

// The SHA-256 of a file, read in pieces so that its pages do not count as this process's memory.
Result<std::string> hash_file(const std::string& path, zo_status code);

// Gives `path` this content: a temporary file beside it is written, synced and renamed, and the folder synced. On failure
// what was at `path` before is still there and nothing else is left.
Status write_file(const std::string& path, const std::function<bool(int descriptor)>& write);
// Writes all of it; false with errno set on failure. For use inside write_file.
bool write_all(int descriptor, const void* data, size_t size);

Status make_folder(const std::string& path);

// A read-only mapping of a file; empty files have a null pointer. Owns the mapping.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path, zo_status code);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  MappedFile(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  const uint8_t* data_;
  size_t size_;
};

// An exclusive flock that a dead process does not hold. Released by the destructor.
class FolderLock {
 public:
  static Result<FolderLock> acquire(const std::string& path);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

 private:
  explicit FolderLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace zoexport
