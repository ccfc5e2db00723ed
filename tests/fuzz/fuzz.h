// What fuzz targets share. Each has LLVMFuzzerTestOneInput: libFuzzer calls it with what it invents, and replay.cpp with
// what was kept.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// What must hold of every input; not assert, which vanishes in a release build.
#define MUST(condition)                                                              \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                  \
    }                                                                                \
  } while (false)

namespace fuzz {

inline std::string text(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// A file with this content, for readers that map one; in memory, and the same one for all inputs of a process.
class File {
 public:
  explicit File(const char* name) : path_("/dev/shm/zoexport-fuzz-" + std::to_string(::getpid()) + "-" + name) {}
  ~File() { ::unlink(path_.c_str()); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& write(const uint8_t* data, size_t size) {
    const int descriptor = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    MUST(descriptor >= 0 && ::write(descriptor, data, size) == static_cast<ssize_t>(size));
    ::close(descriptor);
    return path_;
  }

 private:
  std::string path_;
};

// Numbers from the front of an input.
class Numbers {
 public:
  Numbers(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  uint8_t byte() {
    const uint8_t first = size_ > 0 ? *data_ : 0;
    skip(1);
    return first;
  }
  // Mostly small, sometimes any.
  int64_t number() {
    const uint8_t first = byte();
    if (first < 0xF0) {
      return static_cast<int64_t>(first) - 16;
    }
    uint64_t value = 0;
    for (int i = 0; i < (first < 0xF8 ? 3 : 8); ++i) {
      value = value << 8 | byte();
    }
    return static_cast<int64_t>(value);
  }
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  void skip(size_t count) {
    count = count < size_ ? count : size_;
    data_ += count;
    size_ -= count;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

}  // namespace fuzz
