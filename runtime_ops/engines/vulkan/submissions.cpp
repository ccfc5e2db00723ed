#include "engines/vulkan/submissions.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace zoexport {
namespace vulkan {
namespace {

// Throughput of a slow phone's GPU with these shaders: a low estimate that nobody has measured.
constexpr double kFlopsOfSecond = 5e9, kBytesOfSecond = 2e9;
constexpr uint32_t kMostPieces = 256;  // of a dispatch

double seconds_of(const Work& work) { return work.flops / kFlopsOfSecond + work.bytes / kBytesOfSecond; }

}  // namespace

bool is_divisible(Shader shader) { return shader != Shader::kRows && shader != Shader::kUnpack; }

std::vector<std::vector<Piece>> submissions_of(const std::vector<Dispatch>& dispatches, double most_seconds) {
  std::vector<std::vector<Piece>> found(1);
  double taken = 0;
  for (size_t number = 0; number < dispatches.size(); ++number) {
    const Dispatch& dispatch = dispatches[number];
    const double seconds = seconds_of(dispatch.work);
    const auto* const longest = std::max_element(std::begin(dispatch.groups), std::end(dispatch.groups));
    const auto axis = static_cast<size_t>(longest - std::begin(dispatch.groups));
    const double wanted = is_divisible(dispatch.shader) ? std::ceil(seconds / most_seconds) : 1;
    const auto count = static_cast<uint32_t>(std::clamp<double>(wanted, 1, std::min(*longest, kMostPieces)));
    const uint32_t each = (*longest + count - 1) / count;
    for (uint32_t base = 0; base < *longest; base += each) {
      Piece piece{static_cast<uint32_t>(number)};
      std::copy(std::begin(dispatch.groups), std::end(dispatch.groups), std::begin(piece.groups));
      piece.base[axis] = base;
      piece.groups[axis] = std::min(each, *longest - base);
      const double share = seconds * piece.groups[axis] / *longest;
      if (taken + share > most_seconds && !found.back().empty()) {
        found.emplace_back();
        taken = 0;
      }
      taken += share;
      found.back().push_back(piece);
    }
  }
  return found;
}

}  // namespace vulkan
}  // namespace zoexport
