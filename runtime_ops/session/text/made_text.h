// Limit on the length of a text made by the rules of a tokenizer's file, which is untrusted.
#pragma once

#include <cstddef>
#include <string>

#include "session/result.h"
#include "session/storage/json_reader.h"

namespace zoexport {

inline constexpr size_t kMostMade = size_t{256} << 20;  // bytes of a normal form
inline constexpr size_t kLongestContent = 1024;         // bytes that take the place of others

inline Status check_made(size_t bytes) {
  return bytes <= kMostMade ? Status()
                            : Status(Failure{ZO_DATA_ERROR, "text",
                                             "a text that becomes longer than " + std::to_string(kMostMade) + " bytes",
                                             "a normal form of at most so many", "Give it in parts."});
}

// A text of a file that takes the place of others; one that is too long is a problem of the document.
inline std::string content_text(const JsonNode& node) {
  std::string content = node.text();
  if (content.size() > kLongestContent) {
    node.problem("at most " + std::to_string(kLongestContent) + " bytes");
  }
  return content;
}

}  // namespace zoexport
