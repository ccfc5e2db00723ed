// A program's dispatches as submissions, each likely to end before a system's watchdog finds the GPU busy for too long.
#pragma once

#include <vector>

#include "engines/vulkan/program_file.h"

namespace zoexport {
namespace vulkan {

// Half of what phones allow, about 2 s, by the estimate of a slow GPU.
inline constexpr double kMostSubmission = 1.0;

// Workgroups of a dispatch, from `base` on.
struct Piece {
  uint32_t dispatch = 0;  // its number
  uint32_t base[3] = {0, 0, 0};
  uint32_t groups[3] = {1, 1, 1};
};

// Return whether a shader uses only the numbers of its workgroups, not their count: its dispatches can be divided.
bool is_divisible(Shader shader);

// Return the pieces of each submission, in order; one empty submission if there is no dispatch. A dispatch that is too
// long for a submission is divided along its longest axis.
std::vector<std::vector<Piece>> submissions_of(const std::vector<Dispatch>& dispatches, double most_seconds);

}  // namespace vulkan
}  // namespace zoexport
