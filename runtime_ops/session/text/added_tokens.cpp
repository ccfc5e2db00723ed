#include "session/text/added_tokens.h"

#include <algorithm>

#include "session/text/characters.h"
#include "session/text/tokenizer_file.h"
#include "session/text/utf8.h"

namespace zoexport {
namespace {

// Longest token in bytes: a search walks this far from each position of a text.
constexpr size_t kLongestToken = 1024;

size_t last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) {
    --begin;
  }
  return begin;
}

size_t white_space_before(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t begin = last_character(text.substr(0, end));
    size_t at = begin;
    if (!is_white_space(next_character(text, at))) {
      break;
    }
    end = begin;
  }
  return end;
}

size_t white_space_behind(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t at = begin;
    if (!is_white_space(next_character(text, at))) {
      break;
    }
    begin = at;
  }
  return begin;
}

// Return whether a word continues before or after a part of the text.
bool inside_word(std::string_view text, const Span& part) {
  size_t before = part.begin == 0 ? 0 : last_character(text.substr(0, part.begin));
  size_t behind = part.end;
  return (part.begin > 0 && is_of_words(next_character(text, before))) ||
         (behind < text.size() && is_of_words(next_character(text, behind)));
}

}  // namespace

void AddedTokens::Tree::add(const std::string& text, uint32_t token) {
  uint32_t node = 0;
  for (const char byte : text) {
    const auto [place, fresh] = nodes_[node].emplace(byte, static_cast<uint32_t>(nodes_.size()));
    node = place->second;
    if (fresh) {
      nodes_.emplace_back();
    }
  }
  tokens_.emplace(node, token);
  first_[static_cast<unsigned char>(text[0])] = true;
}

std::optional<uint32_t> AddedTokens::Tree::longest(std::string_view text, size_t at) const {
  std::optional<uint32_t> found;
  if (!first_[static_cast<unsigned char>(text[at])]) {
    return found;
  }
  uint32_t node = 0;
  for (; at < text.size(); ++at) {
    const auto next = nodes_[node].find(text[at]);
    if (next == nodes_[node].end()) {
      break;
    }
    node = next->second;
    if (const auto token = tokens_.find(node); token != tokens_.end()) {
      found = token->second;
    }
  }
  return found;
}

Result<AddedTokens> AddedTokens::read(const JsonNode& root, const Vocabulary& vocabulary,
                                      const Normalizer& normalizer) {
  AddedTokens added;
  if (!root.has("added_tokens")) {
    return added;
  }
  struct Entry {
    Token token;
    bool normalized;
  };
  std::vector<Entry> entries[2];  // special ones, which are looked for first, and others
  auto next = static_cast<uint32_t>(vocabulary.size());
  for (const JsonNode& node : root.member("added_tokens").items()) {
    const auto id = static_cast<uint32_t>(node.member("id").integer(0, kMostTokens - 1));
    const std::string text = node.member("content").text();
    const bool special = node.member("special").boolean();
    if (text.empty() || text.size() > kLongestToken) {
      node.member("content").problem("1 to " + std::to_string(kLongestToken) + " bytes");
      return added;
    }
    // The library gives a token its number in the vocabulary, or the next one, and ignores the number in the file.
    const auto known = vocabulary.find(text);
    if (id != known.value_or(next) || !added.ids_.emplace(text, id).second) {
      node.problem("a token of its own, with its number in model.vocab or else " + std::to_string(next));
      return added;
    }
    next = std::max(next, id + 1);
    if (special) {
      added.special_.insert(text);
    }
    Token token{id, text, node.member("single_word").boolean(), node.member("lstrip").boolean(),
                node.member("rstrip").boolean()};
    entries[special ? 0 : 1].push_back({std::move(token), node.member("normalized").boolean()});
  }
  for (std::vector<Entry>& kind : entries) {
    for (Entry& entry : kind) {
      if (entry.normalized) {
        ZO_ASSIGN(text, normalizer.apply(entry.token.text));
        entry.token.text = std::move(text);
      }
      added.texts_.emplace(entry.token.id, entry.token.text);
      if (!entry.token.text.empty()) {
        (entry.normalized ? added.normalized_ : added.raw_)
            .add(entry.token.text, static_cast<uint32_t>(added.tokens_.size()));
        added.tokens_.push_back(std::move(entry.token));
      }
    }
  }
  return added;
}

std::vector<AddedTokens::Segment> AddedTokens::find(std::string_view text, bool normalized) const {
  const Tree& tree = normalized ? normalized_ : raw_;
  std::vector<Segment> segments;
  size_t end = 0;  // of the segments so far
  for (size_t at = 0; at < text.size();) {
    const auto found = tree.longest(text, at);
    if (!found) {
      at += character_bytes(text[at]);
      continue;
    }
    const Token& token = tokens_[*found];
    Span span{at, at + token.text.size()};
    at = span.end;
    if (token.single_word && inside_word(text, span)) {
      continue;
    }
    if (token.left) {
      span.begin = std::max(white_space_before(text, span.begin), end);
    }
    if (token.right) {
      span.end = white_space_behind(text, span.end);
    }
    if (end < span.begin) {
      segments.push_back({{end, span.begin}, std::nullopt});
    }
    segments.push_back({span, token.id});
    end = span.end;
  }
  if (end < text.size()) {
    segments.push_back({{end, text.size()}, std::nullopt});
  }
  return segments;
}

const std::string* AddedTokens::text(uint32_t id) const {
  const auto found = texts_.find(id);
  return found == texts_.end() ? nullptr : &found->second;
}

std::optional<uint32_t> AddedTokens::id(const std::string& text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? std::nullopt : std::optional<uint32_t>(found->second);
}

}  // namespace zoexport
