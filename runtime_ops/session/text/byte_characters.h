// Bytes as printable characters, as GPT-2 has them: the text of a byte-level token is such characters.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace zoexport {

std::string bytes_as_characters(std::string_view bytes);
// The bytes that the characters stand for; nothing where one of them stands for none.
std::optional<std::string> characters_as_bytes(std::string_view text);

}  // namespace zoexport
