// What the session says of a process's memory.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "check.h"
#include "session/memory.h"

using namespace zoexport;

namespace {

constexpr size_t kBytes = size_t{64} << 20;

void test_what_was_given_back_is_seen() {
  if (memory_usage().anonymous_bytes == 0) {
    return;  // the system does not say
  }
  AnonymousPeak peak;
  const uint64_t before = peak.take();
  {
    const std::vector<uint8_t> held(kBytes, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    CHECK(held.back() == 1);
  }
  CHECK(memory_usage().anonymous_bytes < before + kBytes / 2);
  CHECK(peak.take() >= before + kBytes * 9 / 10);
  // What the last call told is not told again.
  CHECK(peak.take() < before + kBytes / 2);
}

}  // namespace

int main() {
  test_what_was_given_back_is_seen();
  return check::result();
}
