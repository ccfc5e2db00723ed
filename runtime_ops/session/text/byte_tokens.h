// The tokens <0x00> to <0xFF> of a vocabulary, for what it otherwise lacks.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "session/text/vocabulary.h"

namespace zoexport {

class ByteTokens {
 public:
  ByteTokens() = default;  // none
  explicit ByteTokens(const Vocabulary& vocabulary);

  // Append the tokens of the text's bytes; if a byte has no token, append nothing and return false.
  bool append(std::string_view text, std::vector<uint32_t>& ids) const;

 private:
  std::vector<std::optional<uint32_t>> tokens_;
};

}  // namespace zoexport
