// A vocabulary in the order of its texts: the tokens with which a text begins are found byte by byte.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "session/text/vocabulary.h"

namespace zoexport {

class Pieces {
 public:
  // The tokens that begin with the bytes walked so far.
  struct Walk {
    uint32_t first;  // in the order of texts
    uint32_t last;   // behind them
    uint32_t bytes;  // walked
    bool empty() const { return first == last; }
  };

  explicit Pieces(Vocabulary vocabulary);

  Walk begin() const { return {0, static_cast<uint32_t>(order_.size()), 0}; }
  // One byte further, as the text goes on.
  Walk next(const Walk& walk, char byte) const;
  // The token whose text ends here.
  std::optional<uint32_t> token(const Walk& walk) const;
  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
  std::vector<uint32_t> order_;              // numbers, by their texts
  std::array<uint32_t, 257> first_bytes_{};  // where the texts begin that begin with a byte
};

}  // namespace zoexport
