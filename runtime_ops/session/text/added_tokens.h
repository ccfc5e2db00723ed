// Tokens that are found in a text before anything else is done to it: the "added_tokens" of a tokenizer.json.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "session/result.h"
#include "session/storage/json_reader.h"
#include "session/text/normalizer.h"
#include "session/text/regex.h"
#include "session/text/vocabulary.h"

namespace zoexport {

class AddedTokens {
 public:
  // A part of a text: one of the tokens, or what lies between them.
  struct Segment {
    Span span;
    std::optional<uint32_t> id;
  };

  // Read from the root of a tokenizer.json. Unsupported content is a problem of the document, or a failure.
  static Result<AddedTokens> read(const JsonNode& root, const Vocabulary& vocabulary, const Normalizer& normalizer);

  // The parts of a text, in which tokens are looked for that stand before its normalization, or after it.
  std::vector<Segment> find(std::string_view text, bool normalized) const;
  // Return the decoded text of a token: normalized if it is searched for after normalization. Null for others.
  const std::string* text(uint32_t id) const;
  std::optional<uint32_t> id(const std::string& text) const;
  // Return whether a token with this text is special, regardless of its source.
  bool special(const std::string& text) const { return special_.count(text) != 0; }

 private:
  struct Token {
    uint32_t id;
    std::string text;  // as it is looked for
    bool single_word;
    bool left;   // takes the white space before it
    bool right;  // and behind it
  };
  // All texts, as a tree of bytes: the longest that begins somewhere is found in one walk.
  class Tree {
   public:
    void add(const std::string& text, uint32_t token);
    // The token with the longest text that begins at `at`.
    std::optional<uint32_t> longest(std::string_view text, size_t at) const;

   private:
    std::vector<std::map<char, uint32_t>> nodes_{1};
    std::map<uint32_t, uint32_t> tokens_;  // that end at a node
    std::array<bool, 256> first_ = {};     // bytes with which a text begins
  };

  AddedTokens() = default;

  std::vector<Token> tokens_;
  Tree raw_;
  Tree normalized_;
  std::map<uint32_t, std::string> texts_;
  std::map<std::string, uint32_t, std::less<>> ids_;
  std::set<std::string> special_;
};

}  // namespace zoexport
