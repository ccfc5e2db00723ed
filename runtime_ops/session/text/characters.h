// Kinds of characters, as the library tokenizers has them: each of its parts has its own version of Unicode.
#pragma once

#include <string>

namespace zoexport {

bool is_mark(char32_t character);             // for StripAccents
bool is_nonspacing_mark(char32_t character);  // for BertNormalizer
bool is_control(char32_t character);          // for BertNormalizer: what it leaves out of a clean text
bool is_chinese(char32_t character);          // for BertNormalizer: what is a word of its own
bool is_punctuation(char32_t character);
bool is_numeric(char32_t character);
bool is_of_words(char32_t character);  // \w of Rust's expressions

// Appends the character in lower case, which may be two.
void append_lower(std::string& text, char32_t character);

}  // namespace zoexport
