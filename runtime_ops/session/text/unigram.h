// The likeliest tokens: of all ways to cut a word into tokens, the one with the highest sum of their scores.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "session/text/byte_tokens.h"
#include "session/text/pieces.h"
#include "session/text/seen_words.h"

namespace zoexport {

// The model "Unigram" of a tokenizer.json. Used by one thread at a time, as it keeps the words that it has seen.
class Unigram {
 public:
  // `scores` are logarithms of probabilities, by number; `unknown` is the token of characters without one.
  Unigram(Vocabulary vocabulary, std::vector<double> scores, uint32_t unknown, bool byte_fallback);

  // Appends the tokens of a word.
  void encode(std::string_view word, std::vector<uint32_t>& ids) const;
  const Vocabulary& vocabulary() const { return pieces_.vocabulary(); }

 private:
  // The best way to a place in the word.
  struct Best {
    double score;
    uint32_t id;     // of its last token,
    uint32_t begin;  // which begins there; kNowhere where no way is known
  };
  static constexpr uint32_t kNowhere = UINT32_MAX;

  void find_best(std::string_view word) const;
  void add_unknown(std::string_view text, std::vector<uint32_t>& ids) const;

  Pieces pieces_;
  std::vector<double> scores_;
  uint32_t unknown_;
  double unknown_score_;
  ByteTokens bytes_;
  // Buffers of one call, kept for the next.
  mutable std::vector<Best> best_;
  mutable SeenWords seen_;
};

}  // namespace zoexport
