// A file that this process maps for writing: its pages are the system's to write out and drop, and do not count as
// anonymous memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "session/result.h"
#include "session/storage/faults.h"

namespace zoexport {

// The folder for temporary files: $TMPDIR, or the system's own.
std::string temporary_folder();

// Prefix of the name of a file that is to be unlinked, followed by so many letters and digits and ".tmp": a crash
// between creating and unlinking it leaves it behind.
inline constexpr char kScratchPrefix[] = "zoexport-";
inline constexpr size_t kScratchLetters = 6;

// Owns mapping and descriptor.
class SharedFile {
 public:
  // Create a file of `bytes` zeros in `folder` without a name, so that nothing is left of it even after a crash.
  static Result<SharedFile> unnamed(const std::string& folder, size_t bytes);
  // A new one of `bytes` zeros at `path`, in place of what is there. On failure nothing is left.
  static Result<SharedFile> create(const std::string& path, size_t bytes);
  // One that exists; `writable` false maps it for reading.
  static Result<SharedFile> open(const std::string& path, bool writable);

  SharedFile(SharedFile&& other) noexcept;
  SharedFile& operator=(SharedFile&& other) noexcept;
  ~SharedFile();

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  // Device and inode number, which distinguish the file from a copy of it.
  uint64_t device() const { return device_; }
  uint64_t number() const { return number_; }

  // Takes room on the disk for the first `bytes`, so that no later write to the mapping finds it full. Their content is
  // undefined afterwards. File systems that write elsewhere than they reserved (btrfs, APFS) may still find it full:
  // then the write is lost and Faults reports it.
  Status reserve(size_t bytes);
  // Release the whole pages within a range; they are zeros afterwards. If the system cannot, do nothing and return
  // false.
  bool release(size_t offset, size_t bytes);

 private:
  SharedFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  Status map(size_t bytes, bool writable);

  int descriptor_;
  std::string path_;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  uint64_t device_ = 0;
  uint64_t number_ = 0;
  MappingGuard guard_;
};

}  // namespace zoexport
