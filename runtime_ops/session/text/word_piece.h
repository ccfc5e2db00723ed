// The longest token first: a word is cut from its begin on into tokens, each the longest that fits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "session/text/pieces.h"
#include "session/text/seen_words.h"

namespace zoexport {

// The model "WordPiece" of a tokenizer.json. Used by one thread at a time, as it keeps the words that it has seen.
class WordPiece {
 public:
  struct Options {
    uint32_t unknown = 0;            // the token of a word that cannot be cut
    std::string prefix = "##";       // of the tokens inside a word
    uint64_t most_characters = 100;  // of a word, which otherwise is unknown
  };

  WordPiece(Vocabulary vocabulary, Options options);

  // Appends the tokens of a word.
  void encode(std::string_view word, std::vector<uint32_t>& ids) const;
  const Vocabulary& vocabulary() const { return pieces_.vocabulary(); }

 private:
  bool cut(std::string_view word, std::vector<uint32_t>& ids) const;

  Pieces pieces_;
  Options options_;
  Pieces::Walk inside_;  // behind the prefix
  mutable SeenWords seen_;
};

}  // namespace zoexport
