// Tokenization of a word: the "model" of a tokenizer.json.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "session/result.h"
#include "session/storage/json_reader.h"
#include "session/text/bpe.h"
#include "session/text/tokenizer_file.h"
#include "session/text/unigram.h"
#include "session/text/vocabulary.h"
#include "session/text/word_piece.h"

namespace zoexport {

// Used by one thread at a time, as it keeps the words that it has seen.
class TokenModel {
 public:
  // Read from the root; takes the file's vocabulary. Unsupported content is a failure that lists the problems.
  static Result<TokenModel> read(TokenizerFile& file, const JsonNode& root, JsonProblems& problems);

  // Appends the tokens of a word.
  void encode(std::string_view word, std::vector<uint32_t>& ids) const {
    std::visit([&](const auto& kind) { kind.encode(word, ids); }, kind_);
  }
  const Vocabulary& vocabulary() const {
    return std::visit([](const auto& kind) -> const Vocabulary& { return kind.vocabulary(); }, kind_);
  }

 private:
  using Kind = std::variant<Bpe, WordPiece, Unigram>;
  explicit TokenModel(Kind kind) : kind_(std::move(kind)) {}

  Kind kind_;
};

}  // namespace zoexport
