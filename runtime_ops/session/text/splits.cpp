#include "session/text/splits.h"

#include <algorithm>

namespace zoexport {

std::vector<Part> parts(std::string_view text, const std::vector<Span>& matches) {
  std::vector<Part> found;
  size_t end = 0;
  for (const Span& match : matches) {
    if (end != match.begin) {
      found.push_back({{end, match.begin}, false});
    }
    found.push_back({match, true});
    end = match.end;
  }
  if (end != text.size()) {
    found.push_back({{end, text.size()}, false});
  }
  return found;
}

std::vector<Span> pieces(const std::vector<Part>& parts, Behavior behavior) {
  std::vector<Span> found;
  bool matched = false;  // the part before, or with kMergedWithNext the part behind
  const auto join = [&](const Part& part, bool joined) {
    if (!joined || found.empty()) {
      found.push_back(part.span);
    } else {
      found.back() = {std::min(found.back().begin, part.span.begin), std::max(found.back().end, part.span.end)};
    }
    matched = part.match;
  };
  if (behavior == Behavior::kMergedWithNext) {
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      join(*part, part->match && !matched);
    }
    std::reverse(found.begin(), found.end());
    return found;
  }
  for (const Part& part : parts) {
    if (behavior == Behavior::kRemoved) {
      if (!part.match) {
        found.push_back(part.span);
      }
    } else {
      join(part, behavior == Behavior::kMergedWithPrevious
                     ? part.match && !matched
                     : behavior == Behavior::kContiguous && part.match == matched);
    }
  }
  return found;
}

}  // namespace zoexport
