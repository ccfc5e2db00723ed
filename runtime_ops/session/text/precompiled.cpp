#include "session/text/precompiled.h"

#include <algorithm>

#include "session/text/made_text.h"
#include "session/text/utf8.h"

namespace zoexport {
namespace {

// A cluster of fewer bytes is looked up as a whole, as in tokenizers.
constexpr size_t kShortCluster = 6;

// Decode base64; nothing if the text is not base64.
std::optional<std::string> bytes_of_base64(const std::string& text) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  size_t size = text.size();
  while (size > 0 && text.size() - size < 2 && text[size - 1] == '=') {
    --size;
  }
  if (text.size() % 4 != 0) {
    return std::nullopt;
  }
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t held = 0;
  for (size_t i = 0; i < size; ++i) {
    const size_t digit = kDigits.find(text[i]);
    if (digit == std::string_view::npos) {
      return std::nullopt;
    }
    held = held << 6 | static_cast<uint32_t>(digit);
    // The bits that are left over belong to the next byte.
    if (i % 4 != 0) {
      bytes.push_back(static_cast<char>(held >> (6 - 2 * (i % 4))));
    }
  }
  return bytes;
}

uint32_t number_at(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return uint32_t{static_cast<unsigned char>(bytes[at + i])}; };
  return byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
}

// Parts of a unit of the trie, which is Darts'.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t label(uint32_t unit) { return unit & 0x800000FF; }
uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

}  // namespace

Result<Precompiled> Precompiled::read(const JsonNode& node) {
  ZO_ASSIGN(clusters, Regex::clusters(node.where()));
  std::vector<uint32_t> units;
  std::string texts;
  const auto bytes = bytes_of_base64(node.text());
  const size_t size = bytes && bytes->size() >= 4 ? number_at(*bytes, 0) : 0;
  if (size == 0 || size % 4 != 0 || size > bytes->size() - 4) {
    node.problem("SentencePiece's table in base64");
  } else {
    for (size_t at = 4; at < 4 + size; at += 4) {
      units.push_back(number_at(*bytes, at));
    }
    texts = bytes->substr(4 + size);
    if (valid_utf8(texts) != texts.size()) {
      node.problem("SentencePiece's table, whose texts are UTF-8");
    }
  }
  return Precompiled(std::move(units), std::move(texts), std::move(clusters));
}

Result<std::string> Precompiled::apply(std::string_view text) const {
  const auto is_ascii = [&](size_t i) { return static_cast<unsigned char>(text[i]) < 0x80 && text[i] != '\r'; };
  std::string made;
  made.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    // Between two characters of ASCII a cluster ends, but for a line's two. All else is cut with care.
    size_t end = at + 1;
    while (end < text.size() && !(is_ascii(end - 1) && is_ascii(end))) {
      ++end;
    }
    if (end == at + 1) {
      ZO_TRY(append(text.substr(at, 1), made));
    } else {
      ZO_ASSIGN(clusters, clusters_.find(text.substr(at, end - at)));
      for (const Span& cluster : clusters) {
        ZO_TRY(append(text.substr(at + cluster.begin, cluster.end - cluster.begin), made));
      }
    }
    at = end;
  }
  return made;
}

Status Precompiled::append(std::string_view cluster, std::string& made) const {
  const auto whole = cluster.size() < kShortCluster ? changed(cluster) : std::nullopt;
  if (whole) {
    made.append(*whole);
  }
  for (size_t at = 0; at < cluster.size() && !whole;) {
    const std::string_view character = cluster.substr(at, character_bytes(cluster[at]));
    made.append(changed(character).value_or(character));
    at += character.size();
  }
  return check_made(made.size());
}

// Look up the shortest beginning of `part` in the table: its replacement replaces all of `part`, as in tokenizers.
std::optional<std::string_view> Precompiled::changed(std::string_view part) const {
  uint32_t place = offset(units_[0]);
  for (const char byte : part) {
    const auto code = uint32_t{static_cast<unsigned char>(byte)};
    place ^= code;
    if (code == 0 || place >= units_.size() || label(units_[place]) != code) {
      return std::nullopt;
    }
    const uint32_t unit = units_[place];
    place ^= offset(unit);
    if (has_leaf(unit)) {
      const size_t begin = place < units_.size() ? value(units_[place]) : SIZE_MAX;
      // A stranger's table may lead into a character.
      if (begin > texts_.size() || (begin < texts_.size() && is_continuation(texts_[begin]))) {
        return std::nullopt;
      }
      return std::string_view(texts_).substr(begin, std::min(texts_.find('\0', begin), texts_.size()) - begin);
    }
  }
  return std::nullopt;
}

}  // namespace zoexport
