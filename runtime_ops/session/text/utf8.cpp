#include "session/text/utf8.h"

#include <algorithm>
#include <iterator>

namespace zoexport {
namespace {

// Result of reading one character at the beginning of a text.
struct Lead {
  size_t bytes;  // of the character, or of its longest part that is there
  bool whole;
  bool cut;  // the text's end comes before the character's
};

Lead lead(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) {
    return {1, true, false};
  }
  if (first < 0xC2 || first > 0xF4) {
    return {1, false, false};
  }
  const size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // Not longer than needed, no surrogates, nothing beyond U+10FFFF.
  unsigned char least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  unsigned char most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < size; ++i) {
    if (i == text.size()) {
      return {i, false, true};
    }
    if (byte(i) < least || byte(i) > most) {
      return {i, false, false};
    }
    least = 0x80;
    most = 0xBF;
  }
  return {size, true, false};
}

}  // namespace

size_t valid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Lead found = lead(text.substr(at));
    if (!found.whole) {
      break;
    }
    at += found.bytes;
  }
  return at;
}

char32_t next_character(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t first = byte(at);
  if (first < 0x80) {
    at += 1;
    return first;
  }
  if (first < 0xE0) {
    at += 2;
    return (first & 0x1F) << 6 | (byte(at - 1) & 0x3F);
  }
  if (first < 0xF0) {
    at += 3;
    return (first & 0x0F) << 12 | (byte(at - 2) & 0x3F) << 6 | (byte(at - 1) & 0x3F);
  }
  at += 4;
  return (first & 0x07) << 18 | (byte(at - 3) & 0x3F) << 12 | (byte(at - 2) & 0x3F) << 6 | (byte(at - 1) & 0x3F);
}

void append_character(std::string& text, char32_t character) {
  const auto add = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (character < 0x80) {
    add(character);
  } else if (character < 0x800) {
    add(0xC0 | character >> 6);
    add(0x80 | (character & 0x3F));
  } else if (character < 0x10000) {
    add(0xE0 | character >> 12);
    add(0x80 | (character >> 6 & 0x3F));
    add(0x80 | (character & 0x3F));
  } else {
    add(0xF0 | character >> 18);
    add(0x80 | (character >> 12 & 0x3F));
    add(0x80 | (character >> 6 & 0x3F));
    add(0x80 | (character & 0x3F));
  }
}

bool is_white_space(char32_t character) {
  static constexpr char32_t kSingle[] = {0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
  return (character >= 0x09 && character <= 0x0D) || (character >= 0x2000 && character <= 0x200A) ||
         std::find(std::begin(kSingle), std::end(kSingle), character) != std::end(kSingle);
}

std::string Utf8Stream::push(std::string_view bytes) {
  held_.append(bytes);
  std::string text;
  size_t at = 0;
  while (at < held_.size()) {
    const Lead found = lead(std::string_view(held_).substr(at));
    if (found.cut) {
      break;
    }
    if (found.whole) {
      text.append(held_, at, found.bytes);
    } else {
      text.append(kReplacementCharacter);
    }
    at += found.bytes;
  }
  held_.erase(0, at);
  return text;
}

std::string Utf8Stream::finish() {
  std::string text = held_.empty() ? "" : kReplacementCharacter;
  held_.clear();
  return text;
}

}  // namespace zoexport
