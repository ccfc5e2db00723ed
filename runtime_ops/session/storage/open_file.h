// Files that are opened once: what is measured, hashed, read and mapped is one descriptor's.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

#include "session/result.h"

namespace zoexport {

// A regular file, open for reading. Owns the descriptor.
class OpenFile {
 public:
  // `code` is that of what goes wrong with it.
  static Result<OpenFile> open(const std::string& path, zo_status code);

  OpenFile(OpenFile&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)),
        size_(other.size_),
        path_(std::move(other.path_)),
        code_(other.code_) {}
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
  }

  int descriptor() const { return descriptor_; }
  // When it was opened.
  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  zo_status code() const { return code_; }

  // Reads at most `size` bytes at `offset`; fewer at the file's end only. Negative with errno set on failure.
  ssize_t read_at(void* into, size_t size, uint64_t offset) const;
  // The whole of a small file.
  Result<std::string> read() const;
  // The SHA-256, read in pieces so that its pages do not count as this process's memory.
  Result<std::string> hash() const;

 private:
  friend class Folder;
  static Result<OpenFile> of(int descriptor, const std::string& path, zo_status code);
  OpenFile(int descriptor, std::string path, zo_status code)
      : descriptor_(descriptor), path_(std::move(path)), code_(code) {}

  int descriptor_;
  uint64_t size_ = 0;
  std::string path_;
  zo_status code_;
};

// A folder that opens its files from its descriptor and follows no links inside: every file lies in the folder,
// regardless of its content and of concurrent renames.
class Folder {
 public:
  // The path itself may be a link, since it is the host's.
  static Result<Folder> open(const std::string& path, zo_status code);
  Folder(Folder&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)), code_(other.code_) {}
  Folder& operator=(Folder&&) = delete;
  ~Folder() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
  }

  const std::string& path() const { return path_; }
  // Return whether there is something of this name, a link included.
  bool has(const std::string& name) const;
  // `name` has its parts separated by slashes; none of them is empty, "." or "..".
  Result<OpenFile> file(const std::string& name) const;

 private:
  Folder(int descriptor, std::string path, zo_status code)
      : descriptor_(descriptor), path_(std::move(path)), code_(code) {}

  int descriptor_;
  std::string path_;
  zo_status code_;
};

}  // namespace zoexport
