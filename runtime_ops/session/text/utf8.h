// UTF-8: checked where it comes in, then read character by character.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace zoexport {

inline constexpr char kReplacementCharacter[] = "\xEF\xBF\xBD";  // U+FFFD

// Return the number of leading bytes of `text` that are whole characters; its size if all of it is valid.
size_t valid_utf8(std::string_view text);

// The character at `at`, which moves behind it. The text is valid.
char32_t next_character(std::string_view text, size_t& at);

// The bytes of the character that begins with `first`. The text is valid.
inline size_t character_bytes(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

void append_character(std::string& text, char32_t character);

// Unicode's property White_Space.
bool is_white_space(char32_t character);

// Bytes that come in pieces, as text: what cannot be part of a character becomes U+FFFD, one for each longest part of one, as
// Unicode advises and Rust does. A character that is not whole is held back.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  // What is held back, as U+FFFD.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace zoexport
