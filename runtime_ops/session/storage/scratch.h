// Room for what passes between stages: one mapped file that grows to what is asked for.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "session/storage/shared_file.h"

namespace zoexport {

class Scratch {
 public:
  // Tensors that share a scratch begin at multiples of this.
  static constexpr size_t kAlignment = 64;
  static size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  // The file is made in `folder` when it is first used; empty: the folder for temporary files. The string outlives this
  // object and may change until then.
  explicit Scratch(const std::string& folder) : folder_(folder) {}

  // Makes room for `bytes`, of undefined content. Pointers from before are no longer valid.
  Status reserve(size_t bytes) {
    if (bytes == 0) {
      return {};
    }
    if (!file_ || file_->size() < bytes) {
      file_.reset();
      ZO_ASSIGN(file, SharedFile::unnamed(folder_.empty() ? temporary_folder() : folder_, bytes));
      file_.emplace(std::move(file));
      reserved_ = bytes;
      taken_ = Clock::now();
    }
    // Another file may use the released room by now.
    if (reserved_ < bytes) {
      ZO_TRY(file_->reserve(bytes));
      reserved_ = bytes;
      taken_ = Clock::now();
    }
    return {};
  }

  // Null before anything was reserved.
  uint8_t* data() const { return file_ ? file_->data() : nullptr; }

  // Gives a range back whose content is no longer needed; it must not be written before the next reserve. As a page that
  // comes back costs more than the arithmetic that fills it, nothing is done before the system is about to write out.
  void release(size_t offset, size_t bytes) {
    if (bytes > 0 && Clock::now() - taken_ > kHeld && file_->release(offset, bytes)) {
      reserved_ = 0;
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  // Linux writes out what was written 30 s ago.
  static constexpr std::chrono::seconds kHeld{20};

  const std::string& folder_;
  std::optional<SharedFile> file_;
  size_t reserved_ = 0;      // bytes that the disk has room for
  Clock::time_point taken_;  // when it took room that it still has
};

}  // namespace zoexport
