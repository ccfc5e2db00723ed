#include "session/text/byte_characters.h"

#include <array>

#include "session/text/utf8.h"

namespace zoexport {
namespace {

constexpr char32_t kShifted = 0x100;  // where the characters begin of bytes that are not printable

// Printable in Latin-1: such a byte is its own character.
constexpr bool printable(size_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Tables {
  std::array<std::string, 256> characters;
  std::array<int, 0x180> bytes;
  Tables() {
    bytes.fill(-1);
    char32_t next = kShifted;
    for (size_t byte = 0; byte < 256; ++byte) {
      const char32_t character = printable(byte) ? static_cast<char32_t>(byte) : next++;
      append_character(characters[byte], character);
      bytes[character] = static_cast<int>(byte);
    }
  }
};

const Tables& tables() {
  static const Tables made;
  return made;
}

}  // namespace

std::string bytes_as_characters(std::string_view bytes) {
  const auto& characters = tables().characters;
  std::string text;
  text.reserve(bytes.size() + bytes.size() / 4);
  for (const char byte : bytes) {
    text += characters[static_cast<unsigned char>(byte)];
  }
  return text;
}

std::optional<std::string> characters_as_bytes(std::string_view text) {
  const auto& bytes = tables().bytes;
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const char32_t character = next_character(text, at);
    if (character >= bytes.size() || bytes[character] < 0) {
      return std::nullopt;
    }
    result.push_back(static_cast<char>(bytes[character]));
  }
  return result;
}

}  // namespace zoexport
