// Examples laid out into calls of a program: rows of tokens and label entries.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "session/data/dataset.h"

namespace zoexport {

// The size of one call.
struct CallLimits {
  uint32_t rows;
  uint32_t max_length;
  uint32_t min_length;  // max_length where every call has rows of this length
  uint32_t max_labels;
  uint32_t min_labels;              // fewer entries are filled up with ones that nobody reads
  std::vector<uint32_t> lengths{};  // ascending, up to max_length: rows get the smallest that fits; empty: any length
  // Padding token of a model that is not causal, so that it sees no padding. Every label sees a whole row.
  std::optional<int64_t> pad_token{};
};

// One call. Entries beyond owners.size() are filling.
struct Call {
  uint32_t length = 0;                   // tokens of each row: those of the longest, within the limits
  std::vector<int64_t> tokens;           // rows * length, padded with the limits' pad_token, or 0
  std::vector<int64_t> label_positions;  // row * length + position
  std::vector<int64_t> label_tokens;
  std::vector<uint32_t> owners;    // entry -> candidate of the layout
  std::vector<uint32_t> examples;  // row -> example of the layout; rows beyond are filling
};

// A batch of examples as calls, and what is needed to reduce their outputs to losses.
struct Layout {
  struct Example {
    uint32_t first;   // its first candidate in `labels`
    uint32_t count;   // candidates laid out: all, or the right one alone
    uint32_t target;  // the right one, counted from `first`
  };
  std::vector<Example> examples;
  std::vector<uint32_t> labels;  // label entries of each candidate
  // Sum of each candidate's log-probabilities under the reference model; empty if no loss needs it.
  std::vector<double> reference;
  std::vector<Call> calls;
};

// Lays out `count` examples; a failure where their rows take more memory than this machine has. `all_candidates`: false lays
// out right candidates alone. Candidates of an example share a row when one's tokens, up to its last label, begin with the
// other's; with a pad_token, when all their tokens are the same. Every candidate fits max_length. Rows lie in the order of their
// examples; those of several calls by length, the longest first, as a call is as long as its longest row.
Result<Layout> lay_out(const Dataset& dataset, const uint64_t* indices, size_t count, bool all_candidates,
                       const CallLimits& limits);

}  // namespace zoexport
