// Methods of Python's texts that templates call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "session/chat/value.h"

namespace zoexport::jinja {

enum class Case {
  kUpper,
  kCapital,
  kTitle,
  kWords
};  // kWords: the filter `title`, which begins words at blanks and brackets

// Bytes of a list element that is a text: the element, the text, and the memory of what both were made of.
inline constexpr size_t kOfPart = 128;

// Return whether Python's strip treats the character as white space.
bool blank(char32_t character);
// Python's strip, lstrip and rstrip: without these characters, or white space, at the begin and the end.
std::string cut(const std::string& text, const std::optional<std::string>& set, bool begin, bool end);
std::string lower(const std::string& text);
// Return the number of characters, or one of them.
size_t count(const std::string& text);
std::string character(const std::string& text, size_t place);
// Python's splitlines.
List lines_of(Costs& costs, const std::string& text);
bool ascii(const std::string& text);
// `most`: replacements, below 0 all.
std::string replaced(const std::string& text, const std::string& old, const std::string& with, int64_t most);
// Python's split and rsplit; without a separator at white space.
List split(Costs& costs, const std::string& text, const std::optional<std::string>& separator, int64_t most,
           bool right);

}  // namespace zoexport::jinja
