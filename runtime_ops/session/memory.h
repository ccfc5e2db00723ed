// Memory usage of this process, as the kernel reports it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace zoexport {

// Memory in bytes; zeros if the system does not report it.
struct MemoryUsage {
  uint64_t rss_bytes = 0;
  uint64_t peak_rss_bytes = 0;
  uint64_t anonymous_bytes = 0;
};
MemoryUsage memory_usage();

// Return the machine's memory in bytes; UINT64_MAX if unknown. A bundle that needs more is refused before it allocates:
// systems overcommit memory and end the process later.
uint64_t machine_memory();

// Return freed memory that the C library keeps to the system, if possible: tens of megabytes after a large tokenizer,
// whose many small allocations lie between others.
void return_freed_memory();

// Sampler of the anonymous memory, every 10 ms: engines allocate and free memory within a step, which a
// sample after the step would miss.
class AnonymousPeak {
 public:
  AnonymousPeak();
  ~AnonymousPeak();
  AnonymousPeak(const AnonymousPeak&) = delete;
  AnonymousPeak& operator=(const AnonymousPeak&) = delete;

  // Return the peak in bytes since the last call, including now; 0 if unknown.
  uint64_t take();

 private:
  std::atomic<uint64_t> most_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace zoexport
