// Who signed a bundle: Ed25519 in the file formats of minisign (docs/formats.md, "Signature").
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "session/result.h"
#include "session/storage/open_file.h"

namespace zoexport {

struct PublicKey {
  std::array<uint8_t, 8> number;  // tells keys apart; chosen at random when a key is made
  std::array<uint8_t, 32> key;
};

using TrustedKeys = std::vector<PublicKey>;

// Public keys in base64, one a line, as minisign writes them; its comment lines may be among them. No key at all is
// refused, as it cannot be meant.
Result<TrustedKeys> parse_keys(const std::string& text);

// Check that one of the keys signed `content` of the folder's file `name`; the signature is in NAME.minisig.
Status check_signature(const Folder& folder, const std::string& name, const std::string& content,
                       const TrustedKeys& trusted);

}  // namespace zoexport
