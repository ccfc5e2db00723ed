// Examples of one sequence packed into rows of a bundle's seq_len (docs/packing.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "session/data/dataset.h"
#include "session/text/tokenizer.h"

namespace zoexport {

// Packs sequences, in the order in which they come, into rows of at most `seq_len` tokens: one row is filled before the next
// one begins. Each row becomes an example of the data set.
class RowPacker {
 public:
  // `separator`, where there is one, stands between two sequences of which the second begins with no special token. Nothing
  // is predicted at it. `tokenizer` and `dataset` must outlive the packer.
  RowPacker(size_t seq_len, std::optional<int64_t> separator, const Tokenizer& tokenizer, Dataset& dataset)
      : seq_len_(seq_len), separator_(separator), tokenizer_(tokenizer), dataset_(dataset) {}

  // Adds a sequence; `labels[t]` follows `tokens[t]`, or is kNoLabel. `divides`: its tokens fill the rest of the row, and those
  // that are left the rows after it; otherwise it is at most seq_len long, and stays in one row. A label whose own token is
  // in the next row is predicted at the end of this one, so that no label is lost.
  Status add(const std::vector<int64_t>& tokens, const std::vector<int64_t>& labels, bool divides,
             const std::string& where);
  // Ends the row that is open.
  Status finish();

 private:
  size_t seq_len_;
  std::optional<int64_t> separator_;
  const Tokenizer& tokenizer_;
  Dataset& dataset_;
  std::vector<int64_t> tokens_;  // of the open row
  std::vector<int64_t> labels_;
  std::string where_;  // of the sequence that the open row begins with
};

}  // namespace zoexport
