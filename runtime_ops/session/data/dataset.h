// Tokenized examples (docs/formats.md), packed into a few flat arrays.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "session/parts.h"
#include "session/result.h"

namespace zoexport {

inline constexpr int64_t kNoLabel = -100;

// A candidate's tokens and labels; borrowed from the dataset.
struct Candidate {
  const int32_t* tokens;
  const int32_t* labels;
  uint32_t length;
};

// The lines of a JSON Lines file that are not blank, with their numbers; a file without any is a failure. `go_on` is told of
// the file's bytes, after each line.
Status for_lines(const std::string& path, const std::function<Status(const std::string& line, size_t number)>& take,
                 const GoOn& go_on = {});

class Dataset {
 public:
  // Appends one example; `where` names it in messages. On failure nothing is appended.
  Status add(const zo_candidate* candidates, size_t count, size_t target, const std::string& where);
  // Appends the examples of a JSON Lines file; on failure nothing is appended.
  Status load(const std::string& path);
  // Writes all examples as such a file.
  Status write(const std::string& path) const;

  size_t size() const { return first_candidate_.size(); }
  size_t candidates(size_t example) const;
  size_t target(size_t example) const { return targets_[example]; }
  Candidate candidate(size_t example, size_t index) const;

  // SHA-256 over everything that training sees of the examples, in their order (docs/formats.md, "JSON files of a run").
  std::string digest() const;

  // Return the number of examples that a chat template wrote; nothing if examples came as tokens.
  std::optional<uint64_t> conversations() const { return conversations_; }
  void note_conversations(uint64_t count) { conversations_ = conversations_.value_or(0) + count; }

  // Over all examples: what a session compares with its bundle.
  uint32_t longest() const { return longest_; }
  int32_t largest_token() const { return largest_token_; }

 private:
  std::vector<int32_t> tokens_;  // tokens and labels of all candidates, end to end
  std::vector<int32_t> labels_;
  std::vector<size_t> begins_;  // of each candidate in tokens_
  std::vector<size_t> first_candidate_;
  std::vector<uint32_t> targets_;
  uint32_t longest_ = 0;
  int32_t largest_token_ = 0;
  std::optional<uint64_t> conversations_;
};

}  // namespace zoexport
