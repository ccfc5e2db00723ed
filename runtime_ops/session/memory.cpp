#include "session/memory.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <system_error>
#if defined(__linux__)
#include <malloc.h>
#endif

namespace zoexport {

void return_freed_memory() {
#if defined(__GLIBC__)
  ::malloc_trim(0);
#elif defined(M_PURGE)
  ::mallopt(M_PURGE, 0);
#endif
}

MemoryUsage memory_usage() {
  MemoryUsage usage;
  const int file = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return usage;
  }
  char text[4096];
  const ssize_t size = ::read(file, text, sizeof(text) - 1);
  ::close(file);
  text[size > 0 ? size : 0] = '\0';
  const auto kilobytes = [&](const char* key) -> uint64_t {
    const char* line = std::strstr(text, key);
    return line == nullptr ? 0 : std::strtoull(line + std::strlen(key), nullptr, 10) * 1024;
  };
  usage.rss_bytes = kilobytes("\nVmRSS:");
  usage.peak_rss_bytes = kilobytes("\nVmHWM:");
  usage.anonymous_bytes = kilobytes("\nRssAnon:");
  return usage;
}

uint64_t machine_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long bytes = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && bytes > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(bytes) : UINT64_MAX;
}

AnonymousPeak::AnonymousPeak() {
  if (memory_usage().anonymous_bytes == 0) {
    return;
  }
  // Block all signals in the new thread: the host's own threads handle them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] {
      std::unique_lock<std::mutex> lock(mutex_);
      do {
        const uint64_t now = memory_usage().anonymous_bytes;
        uint64_t most = most_.load();
        while (most < now && !most_.compare_exchange_weak(most, now)) {
        }
      } while (!changed_.wait_for(lock, std::chrono::milliseconds(10), [this] { return done_; }));
    });
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch)
    // Without a thread, only take() samples.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

AnonymousPeak::~AnonymousPeak() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
}

uint64_t AnonymousPeak::take() { return std::max(most_.exchange(0), memory_usage().anonymous_bytes); }

}  // namespace zoexport
