// Two copies of an array of bytes: the current one, and the next one that a step writes while the current one stays.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "session/storage/work_file.h"

namespace zoexport {

class TwoCopies {
 public:
  // In the heap, zeros.
  explicit TwoCopies(size_t bytes) : heap_{std::vector<uint8_t>(bytes), std::vector<uint8_t>(bytes)} {}
  // In a mapped file; `current` is 0 or 1.
  TwoCopies(WorkFile file, int current) : file_(std::move(file)), current_(current) {}

  uint8_t* current() { return copy(current_); }
  const uint8_t* current() const { return const_cast<TwoCopies*>(this)->copy(current_); }
  uint8_t* next() { return copy(1 - current_); }
  void flip() { current_ = 1 - current_; }

  // Step counts in the file's header; copies in the heap have none, as they end with the process.
  uint64_t next_steps() const { return file_ ? file_->steps(1 - current_) : WorkFile::kNoSteps; }
  void set_next_steps(uint64_t steps) { set_steps(1 - current_, steps); }
  void set_current_steps(uint64_t steps) { set_steps(current_, steps); }
  void set_valid(bool valid) {
    if (file_) {
      file_->set_valid(valid);
    }
  }

 private:
  uint8_t* copy(int copy) { return file_ ? file_->copy(copy) : heap_[copy].data(); }
  void set_steps(int copy, uint64_t steps) {
    if (file_) {
      file_->set_steps(copy, steps);
    }
  }

  std::vector<uint8_t> heap_[2];
  std::optional<WorkFile> file_;
  int current_ = 0;
};

}  // namespace zoexport
