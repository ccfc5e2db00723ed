// Examples of one sequence packed into rows of a bundle's max_length (docs/formats.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "session/data/dataset.h"
#include "session/manifest/text_spec.h"
#include "session/text/tokenizer.h"

namespace zoexport {

// Packs sequences, in the order in which they come, into rows of at most `max_length` tokens: one row is filled before the next
// one begins. Each row becomes an example of the data set.
class RowPacker {
 public:
  // Insert an end token of `spec` between two sequences if the first has no end token and the second begins with no
  // special token. Nothing is predicted at it. The references must outlive the packer.
  RowPacker(size_t max_length, const TextSpec& spec, const Tokenizer& tokenizer, Dataset& dataset)
      : max_length_(max_length), spec_(spec), tokenizer_(tokenizer), dataset_(dataset) {}

  // Adds a sequence; `labels[t]` follows `tokens[t]`, or is kNoLabel. `divides`: its tokens fill the rest of the row, and those
  // that are left the rows after it; otherwise it is at most max_length long, and stays in one row. A label whose own token is
  // in the next row is predicted at the end of this one, so that no label is lost.
  Status add(const std::vector<int64_t>& tokens, const std::vector<int64_t>& labels, bool divides,
             const std::string& where);
  // Ends the row that is open.
  Status finish();

 private:
  size_t max_length_;
  const TextSpec& spec_;
  const Tokenizer& tokenizer_;
  Dataset& dataset_;
  std::vector<int64_t> tokens_;  // of the open row
  std::vector<int64_t> labels_;
  std::string where_;  // of the sequence that the open row begins with
};

}  // namespace zoexport
