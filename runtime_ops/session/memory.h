// What the kernel says of this process's memory.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace zoexport {

// Zeros if the system does not tell.
struct MemoryUsage {
  uint64_t rss_bytes = 0;
  uint64_t peak_rss_bytes = 0;
  uint64_t anonymous_bytes = 0;
};
MemoryUsage memory_usage();

// Bytes of memory that this machine has; UINT64_MAX where the system does not say. What a bundle asks for beyond it is
// refused before it is taken, as systems grant more than there is and end the process later.
uint64_t machine_memory();

// Gives the system what was freed and the C library keeps, where it can: tens of megabytes after a large tokenizer, whose
// many small parts lie between others.
void return_freed_memory();

// Looks at the anonymous memory every 10 ms while it exists: engines take and give back memory within a step, which a
// look after it would miss.
class AnonymousPeak {
 public:
  AnonymousPeak();
  ~AnonymousPeak();
  AnonymousPeak(const AnonymousPeak&) = delete;
  AnonymousPeak& operator=(const AnonymousPeak&) = delete;

  // The most that was seen since the last call, now included; 0 where the system does not say.
  uint64_t take();

 private:
  std::atomic<uint64_t> most_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace zoexport
