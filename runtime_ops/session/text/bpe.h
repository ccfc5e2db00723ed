// Byte pair encoding: a word's characters, merged pair by pair in the order in which the merges were learned.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "session/text/byte_tokens.h"
#include "session/text/seen_words.h"
#include "session/text/vocabulary.h"

namespace zoexport {

// Pairs of tokens that become one, the first of the list first.
class Merges {
 public:
  struct Merge {
    uint32_t left;
    uint32_t right;
    uint32_t made;
  };

  // A later merge of the same pair takes the place of an earlier one.
  explicit Merges(std::vector<Merge> merges);
  Merges() : Merges(std::vector<Merge>()) {}

  // Return the rank of a pair's merge; kNone if the pair has no merge.
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t rank(uint32_t left, uint32_t right) const;
  uint32_t made(uint32_t rank) const { return merges_[rank].made; }

 private:
  size_t slot(uint32_t left, uint32_t right) const;

  std::vector<Merge> merges_;
  std::vector<uint32_t> slots_;  // ranks by the hash of their pair, open addressing
};

// The model "BPE" of a tokenizer.json. Used by one thread at a time, as it keeps the words that it has seen.
class Bpe {
 public:
  struct Options {
    std::optional<uint32_t> unknown;  // the token for what the vocabulary lacks, which otherwise is left out
    bool fuse_unknown = false;        // one for a run of them
    bool byte_fallback = false;       // tokens <0x00> to <0xFF> for what it lacks
    bool ignore_merges = false;       // a word that is a token stays that token, without merges
    std::string prefix;               // of the tokens of characters inside a word
    std::string suffix;               // of that of a word's last character
  };

  Bpe(Vocabulary vocabulary, Merges merges, Options options);

  // Appends the tokens of a word.
  void encode(std::string_view word, std::vector<uint32_t>& ids) const;
  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  // A token of the word that is being merged, in a list.
  struct Symbol {
    uint32_t id;
    uint32_t before;
    uint32_t after;
    bool merged;  // into the one before
  };
  // A pair that could be merged; obsolete if the word has changed since.
  struct Candidate {
    uint32_t rank;
    uint32_t position;
    bool operator<(const Candidate& other) const {  // the last comes first in a heap
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  static constexpr uint32_t kEnd = UINT32_MAX;

  void split(std::string_view word) const;
  void merge() const;
  void consider(uint32_t position) const;

  Vocabulary vocabulary_;
  Merges merges_;
  Options options_;
  ByteTokens bytes_;
  // Buffers of one call, kept for the next.
  mutable std::vector<Symbol> symbols_;
  mutable std::vector<Candidate> heap_;
  mutable std::vector<uint32_t> fallback_;
  mutable SeenWords seen_;
};

}  // namespace zoexport
