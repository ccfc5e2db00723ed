// Inputs of kernels, and results with what nothing may write around them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "check.h"
#include "rng/normal.h"

namespace check {

// Normal numbers, other ones for each id.
inline std::vector<float> noise(uint32_t id, size_t count) {
  std::vector<float> values(count);
  zoexport::rng::normals(zoexport::rng::Stream{99, id, 0, 0}, 0, count, values.data());
  return values;
}

// What `run` writes at its argument, `count` floats; it writes nothing beside them.
template <typename Run>
std::vector<float> guarded(size_t count, const Run& run) {
  constexpr size_t kGuard = 40;
  constexpr float kUntouched = 12345.0f;
  std::vector<float> memory(count + 2 * kGuard, kUntouched);
  run(memory.data() + kGuard);
  for (size_t i = 0; i < kGuard; ++i) {
    CHECK(memory[i] == kUntouched && memory[memory.size() - 1 - i] == kUntouched);
  }
  return {memory.begin() + kGuard, memory.end() - kGuard};
}

// Tasks 0 .. count-1, `step` at a time.
template <typename Run>
void in_steps(size_t count, size_t step, const Run& run) {
  for (size_t begin = 0; begin < count; begin += step) {
    CHECK(run(begin, std::min(count, begin + step)));
  }
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace check
