// Handling of mapped files whose pages cannot be read: another program truncated the file, or its disk is full or
// failing. The fault would end the process by SIGBUS; here it ends the session's verb instead.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "session/result.h"

namespace zoexport {

// The faults of one session's mappings. Once there was one, values in memory are no longer those of the files: what the
// session computed since must not be kept, and the session be opened again.
class Faults {
 public:
  // Return the faults of the verb that runs on this thread; outside verbs, a shared object.
  static const std::shared_ptr<Faults>& current();

  // Makes it the current one of this thread for a scope.
  class Scope {
   public:
    explicit Scope(std::shared_ptr<Faults> faults);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<Faults> before_;
  };

  // A failure with the file's path, after the first fault.
  Status check() const { return seen_.load(std::memory_order_relaxed) ? failure() : Status(); }

 private:
  friend class MappingGuard;
  Status failure() const;

  std::atomic<bool> seen_{false};
  Failure of_ended_;  // where the fault's guard has ended
};

// While it lives, a fault within [data, data + size) replaces what is mapped from the fault's page on by memory of zeros,
// which counts as anonymous, and is noted in the current Faults. Destroyed before the range is unmapped.
class MappingGuard {
 public:
  MappingGuard() = default;
  // `code` is that of the failure.
  MappingGuard(const void* data, size_t size, const std::string& path, zo_status code);
  MappingGuard(MappingGuard&& other) noexcept;
  MappingGuard& operator=(MappingGuard&& other) noexcept;
  ~MappingGuard();

  struct Range;

 private:
  Range* range_ = nullptr;
  std::shared_ptr<Faults> faults_;
};

}  // namespace zoexport
