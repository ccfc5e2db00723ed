#include "session/text/characters.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "session/text/decomposition.h"
#include "session/text/utf8.h"

namespace zoexport {
namespace {

struct Range {
  uint32_t first;
  uint32_t last;
};

#include "session/text/character_tables.inc"

constexpr Decompositions kLowers(kLower, kLowerText);

template <size_t N>
bool inside(const Range (&ranges)[N], char32_t character) {
  const auto* range = std::upper_bound(std::begin(ranges), std::end(ranges), uint32_t{character},
                                       [](uint32_t value, const Range& entry) { return value < entry.first; });
  return range != std::begin(ranges) && character <= std::prev(range)->last;
}

}  // namespace

bool is_mark(char32_t character) { return inside(kMarks, character); }
bool is_nonspacing_mark(char32_t character) { return inside(kNonspacingMarks, character); }
bool is_control(char32_t character) { return inside(kControls, character); }
bool is_chinese(char32_t character) { return inside(kChinese, character); }
bool is_punctuation(char32_t character) { return inside(kPunctuation, character); }
bool is_numeric(char32_t character) { return inside(kNumeric, character); }
bool is_of_words(char32_t character) { return inside(kOfWords, character); }

void append_lower(std::string& text, char32_t character) {
  const auto append = [&](uint32_t one) { append_character(text, one); };
  if (!kLowers.each(character, append)) {
    append(character);
  }
}

}  // namespace zoexport
