#include "session/memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace zoexport {

zo_memory memory_usage() {
  zo_memory usage{sizeof(zo_memory), 0, 0, 0};
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

}  // namespace zoexport
