// Files of packed weights, kept from one start to the next (docs/session.md, "Packed weights").
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "session/result.h"
#include "session/storage/files.h"

namespace zoexport {

// Where they are kept when the host names no folder; empty where the environment names none either.
std::string default_packed_folder();

// What decides, beside the weights, how they are packed: the processor, and the library that packs (`inside` is any
// address in it).
std::string packer_identity(const void* inside);

// One file of packed weights that is whole, of this processor, and locked: no other process opens or remakes it until
// this object is gone.
class PackedWeights {
 public:
  // Finds the file named by `key` in `folder`, or makes it: `make` writes the path that it is given, and `room` bytes
  // must be free for that. A failure leaves nothing behind and says why the weights cannot be kept there.
  static Result<PackedWeights> open(const std::string& folder, const std::string& key, uint64_t room,
                                    const std::function<Status(const std::string& path)>& make);
  const std::string& path() const { return path_; }
  // False where the program had nothing to pack.
  bool any() const { return size_ > 0; }

  // Gives up the locks that this process has on the file, for a library that keeps one although it only reads.
  void release_library_lock() const;

 private:
  PackedWeights(FileLock lock, std::string path, uint64_t size)
      : lock_(std::move(lock)), path_(std::move(path)), size_(size) {}
  FileLock lock_;
  std::string path_;
  uint64_t size_;
};

}  // namespace zoexport
