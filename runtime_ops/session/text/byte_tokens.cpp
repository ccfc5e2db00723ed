#include "session/text/byte_tokens.h"

#include <algorithm>
#include <string>

namespace zoexport {

ByteTokens::ByteTokens(const Vocabulary& vocabulary) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  tokens_.reserve(256);
  for (size_t byte = 0; byte < 256; ++byte) {
    tokens_.push_back(vocabulary.find(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">"));
  }
}

bool ByteTokens::append(std::string_view text, std::vector<uint32_t>& ids) const {
  const auto token = [&](char byte) { return tokens_[static_cast<unsigned char>(byte)]; };
  if (tokens_.empty() || !std::all_of(text.begin(), text.end(), [&](char byte) { return token(byte).has_value(); })) {
    return false;
  }
  for (const char byte : text) {
    ids.push_back(*token(byte));
  }
  return true;
}

}  // namespace zoexport
