#include "session/text/unicode_normal.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "session/text/decomposition.h"
#include "session/text/utf8.h"

namespace zoexport {
namespace {

struct Composition {
  uint32_t first;
  uint32_t second;
  uint32_t made;
};

struct CombiningRange {
  uint32_t first;
  uint32_t last;
  uint8_t kind;
};

#include "session/text/unicode_tables.inc"

constexpr Decompositions kCanonicals(kCanonical, kCanonicalText);
constexpr Decompositions kCompatibles(kCompatible, kCompatibleText);

// Syllables of Hangul, which are made of two or three letters by arithmetic.
constexpr uint32_t kSyllables = 0xAC00;
constexpr uint32_t kLeading = 0x1100;
constexpr uint32_t kVowels = 0x1161;
constexpr uint32_t kTrailing = 0x11A7;
constexpr uint32_t kLeadingCount = 19;
constexpr uint32_t kVowelCount = 21;
constexpr uint32_t kTrailingCount = 28;
constexpr uint32_t kSyllableCount = kLeadingCount * kVowelCount * kTrailingCount;

struct Character {
  uint32_t code;
  uint8_t kind;  // its combining class
};

uint8_t combining_class(uint32_t code) {
  const auto* range = std::upper_bound(std::begin(kCombining), std::end(kCombining), code,
                                       [](uint32_t value, const CombiningRange& entry) { return value < entry.first; });
  return range != std::begin(kCombining) && code <= std::prev(range)->last ? std::prev(range)->kind : 0;
}

void decompose(uint32_t code, bool compatible, std::vector<Character>& into) {
  const auto add = [&](uint32_t one) { into.push_back({one, combining_class(one)}); };
  if (code < 0x80) {
    into.push_back({code, 0});
  } else if (code >= kSyllables && code < kSyllables + kSyllableCount) {
    const uint32_t index = code - kSyllables;
    add(kLeading + index / (kVowelCount * kTrailingCount));
    add(kVowels + index % (kVowelCount * kTrailingCount) / kTrailingCount);
    if (index % kTrailingCount != 0) {
      add(kTrailing + index % kTrailingCount);
    }
  } else if (!(compatible && kCompatibles.each(code, add)) && !kCanonicals.each(code, add)) {
    add(code);
  }
}

// Marks that follow each other, by their classes.
void order(std::vector<Character>& text) {
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin + 1;
    if (text[begin].kind != 0) {
      while (end < text.size() && text[end].kind != 0) {
        ++end;
      }
      std::stable_sort(text.begin() + static_cast<ptrdiff_t>(begin), text.begin() + static_cast<ptrdiff_t>(end),
                       [](const Character& a, const Character& b) { return a.kind < b.kind; });
    }
    begin = end;
  }
}

// Return the composition of two characters, or 0.
uint32_t composed(uint32_t first, uint32_t second) {
  if (first >= kLeading && first < kLeading + kLeadingCount) {
    return second >= kVowels && second < kVowels + kVowelCount
               ? kSyllables + ((first - kLeading) * kVowelCount + second - kVowels) * kTrailingCount
               : 0;
  }
  if (first >= kSyllables && first < kSyllables + kSyllableCount && (first - kSyllables) % kTrailingCount == 0) {
    return second > kTrailing && second < kTrailing + kTrailingCount ? first + second - kTrailing : 0;
  }
  const auto* entry = std::lower_bound(std::begin(kCompositions), std::end(kCompositions),
                                       Composition{first, second, 0}, [](const Composition& a, const Composition& b) {
                                         return a.first != b.first ? a.first < b.first : a.second < b.second;
                                       });
  return entry != std::end(kCompositions) && entry->first == first && entry->second == second ? entry->made : 0;
}

void compose(std::vector<Character>& text) {
  size_t kept = 0;
  size_t starter = SIZE_MAX;  // among those kept, what a later character may combine with
  for (size_t i = 0; i < text.size(); ++i) {
    const Character next = text[i];
    if (starter != SIZE_MAX) {
      // Blocked by a mark between them of the same or a higher class, or by another starter.
      const bool adjacent = kept == starter + 1;
      const bool blocked = !adjacent && (text[kept - 1].kind == 0 || text[kept - 1].kind >= next.kind);
      const uint32_t made = blocked ? 0 : composed(text[starter].code, next.code);
      if (made != 0) {
        text[starter].code = made;
        continue;
      }
    }
    if (next.kind == 0) {
      starter = kept;
    }
    text[kept++] = next;
  }
  text.resize(kept);
}

}  // namespace

std::string normalized(std::string_view text, NormalForm form) {
  if (std::all_of(text.begin(), text.end(), [](char byte) { return static_cast<unsigned char>(byte) < 0x80; })) {
    return std::string(text);
  }
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  std::vector<Character> characters;
  characters.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    decompose(next_character(text, at), compatible, characters);
  }
  order(characters);
  if (form == NormalForm::kNfc || form == NormalForm::kNfkc) {
    compose(characters);
  }
  std::string result;
  result.reserve(text.size());
  for (const Character& character : characters) {
    append_character(result, character.code);
  }
  return result;
}

}  // namespace zoexport
