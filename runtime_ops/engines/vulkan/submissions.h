// A program's dispatches as submissions, none of which is likely to run longer than a system's watchdog lets a GPU be busy.
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

// Whether a shader knows workgroups by their numbers alone, and not by how many there are: its dispatches can be divided.
bool is_divisible(Shader shader);

// The pieces of each submission, in order; one submission of none where there is no dispatch. A dispatch that alone is longer
// is divided along its longest axis.
std::vector<std::vector<Piece>> submissions_of(const std::vector<Dispatch>& dispatches, double most_seconds);

}  // namespace vulkan
}  // namespace zoexport
