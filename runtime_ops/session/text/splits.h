// Texts in pieces, by what matches in them.
#pragma once

#include <string_view>
#include <vector>

#include "session/text/regex.h"

namespace zoexport {

// A part of a text, which matches or lies between matches.
struct Part {
  Span span;
  bool match = false;
};

// Treatment of the matches.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// The whole text, as matches and what lies between them.
std::vector<Part> parts(std::string_view text, const std::vector<Span>& matches);

// The pieces that `parts` make.
std::vector<Span> pieces(const std::vector<Part>& parts, Behavior behavior);

}  // namespace zoexport
