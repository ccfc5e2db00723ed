// A minimal test harness: CHECK counts, on any thread, and check::result() prints the counts and gives the exit status.
#pragma once

#include <atomic>
#include <cstdio>

namespace check {

inline std::atomic<int> passed{0};
inline std::atomic<int> failed{0};

inline bool that(bool holds, const char* text, const char* file, int line) {
  if (holds) {
    ++passed;
  } else {
    ++failed;
    if (failed <= 50) {
      std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, text);
    }
  }
  return holds;
}

inline int result() {
  std::printf("%d passed, %d failed\n", passed.load(), failed.load());
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace check

#define CHECK(condition) ::check::that(static_cast<bool>(condition), #condition, __FILE__, __LINE__)
