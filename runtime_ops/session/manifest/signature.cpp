#include "session/manifest/signature.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>

extern "C" {
#include <monocypher-ed25519.h>
#include <monocypher.h>
}

namespace zoexport {
namespace {

constexpr size_t kMostSignature = 8192;  // bytes of the file; minisign's own limit of a comment is 1024
const std::string_view kUntrusted = "untrusted comment:";
const std::string_view kTrusted = "trusted comment: ";
const char* const kSign = "Sign it with a key that is trusted ('zoexport sign'), or get it from whoever holds one.";

// Decode base64 of the expected size, else return nothing: the alphabet of RFC 4648 with padding, no other character.
template <size_t N>
std::optional<std::array<uint8_t, N>> from_base64(std::string_view text) {
  static constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  constexpr size_t kDigits = (N * 8 + 5) / 6;
  if (text.size() != (N + 2) / 3 * 4 || text.find_first_not_of('=', kDigits) != std::string_view::npos) {
    return std::nullopt;
  }
  std::array<uint8_t, N> bytes{};
  uint32_t bits = 0;
  size_t held = 0, filled = 0;
  for (const char digit : text.substr(0, kDigits)) {
    const size_t value = kAlphabet.find(digit);
    if (value == std::string_view::npos) {
      return std::nullopt;
    }
    bits = bits << 6 | static_cast<uint32_t>(value);
    held += 6;
    if (held >= 8 && filled < N) {
      held -= 8;
      bytes[filled++] = static_cast<uint8_t>(bits >> held);
    }
  }
  const bool canonical = (bits & ((1u << held) - 1)) == 0;
  return canonical ? std::optional(bytes) : std::nullopt;
}

std::vector<std::string_view> lines(std::string_view text) {
  std::vector<std::string_view> found;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (!line.empty() && line.back() == '\r') {
      line.remove_suffix(1);
    }
    found.push_back(line);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return found;
}

bool starts_with(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

// Format a key like minisign: a little-endian number in hexadecimal digits.
std::string key_text(const uint8_t* number) {
  unsigned long long value = 0;
  for (size_t i = 8; i-- > 0;) {
    value = value << 8 | number[i];
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%llX", value);
  return text;
}

struct Signature {
  std::array<uint8_t, 74> head;    // "ED", the key's number, the signature of the content's BLAKE2b-512
  std::string comment;             // the trusted one
  std::array<uint8_t, 64> global;  // of the signature before and the comment
};

std::optional<Signature> parse_signature(const std::string& text) {
  const std::vector<std::string_view> found = lines(text);
  if (found.size() != 4 || !starts_with(found[0], kUntrusted) || !starts_with(found[2], kTrusted)) {
    return std::nullopt;
  }
  const auto head = from_base64<74>(found[1]);
  const auto global = from_base64<64>(found[3]);
  if (!head || !global || (*head)[0] != 'E' || (*head)[1] != 'D') {
    return std::nullopt;
  }
  return Signature{*head, std::string(found[2].substr(kTrusted.size())), *global};
}

bool verifies(const uint8_t signature[64], const PublicKey& key, const void* message, size_t size) {
  return crypto_ed25519_check(signature, key.key.data(), static_cast<const uint8_t*>(message), size) == 0;
}

}  // namespace

Result<TrustedKeys> parse_keys(const std::string& text) {
  TrustedKeys keys;
  for (const std::string_view line : lines(text)) {
    if (line.empty() || starts_with(line, kUntrusted)) {
      continue;
    }
    const auto bytes = from_base64<42>(line);
    if (!bytes || (*bytes)[0] != 'E' || (*bytes)[1] != 'd') {
      return Failure{ZO_INVALID_ARGUMENT, "trusted keys", "'" + std::string(line.substr(0, 80)) + "'",
                     "minisign public keys in base64, one a line", "Pass the content of the .pub file."};
    }
    PublicKey key{};
    std::copy_n(bytes->begin() + 2, key.number.size(), key.number.begin());
    std::copy_n(bytes->begin() + 10, key.key.size(), key.key.begin());
    keys.push_back(key);
  }
  if (keys.empty()) {
    return Failure{ZO_INVALID_ARGUMENT, "trusted keys", "none", "at least one public key",
                   "Pass the content of a .pub file, or no list at all to open any bundle."};
  }
  return keys;
}

Status check_signature(const Folder& folder, const std::string& name, const std::string& content,
                       const TrustedKeys& trusted) {
  const std::string beside = name + ".minisig";
  const auto refused = [&](const std::string& found, const std::string& expected) {
    return Failure{ZO_BUNDLE_ERROR, folder.path() + "/" + beside, found, expected, kSign};
  };
  if (!folder.has(beside)) {
    return refused("no signature", "one by a trusted key");
  }
  ZO_ASSIGN(file, folder.file(beside));
  std::optional<Signature> signature;
  if (file.size() <= kMostSignature) {
    ZO_ASSIGN(text, file.read());
    signature = parse_signature(text);
  }
  if (!signature) {
    return refused("no whole signature", "a signature of minisign's, prehashed");
  }
  uint8_t digest[64];
  crypto_blake2b(digest, reinterpret_cast<const uint8_t*>(content.data()), content.size());
  std::string global(signature->head.begin() + 10, signature->head.end());
  global += signature->comment;
  bool known = false;
  for (const PublicKey& key : trusted) {
    if (!std::equal(key.number.begin(), key.number.end(), signature->head.begin() + 2)) {
      continue;
    }
    known = true;
    if (verifies(&signature->head[10], key, digest, sizeof(digest)) &&
        verifies(signature->global.data(), key, global.data(), global.size())) {
      return {};
    }
  }
  if (known) {
    return refused("a signature that is not of this " + name, "that of its content by a trusted key");
  }
  return refused("a signature by the key " + key_text(&signature->head[2]), "one by a trusted key");
}

}  // namespace zoexport
