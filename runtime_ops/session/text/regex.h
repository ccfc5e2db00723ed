// Regular expressions of a tokenizer.json, which are Oniguruma's, matched by PCRE2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "session/result.h"

namespace zoexport {

// Bytes of a text.
struct Span {
  size_t begin = 0;
  size_t end = 0;
};

// Translate an expression to PCRE2's syntax. Syntax that only one of the libraries supports, or that differs in
// meaning, is refused; `where` names the expression's owner.
Result<std::string> translated_regex(const std::string& pattern, const std::string& where);

class Regex {
 public:
  static constexpr uint32_t kMostSteps = 10'000'000;  // of a match

  static Result<Regex> compile(const std::string& pattern, const std::string& where, uint32_t most_steps = kMostSteps);

  // Match user-perceived characters: Unicode's extended grapheme clusters.
  static Result<Regex> clusters(const std::string& where);

  // The matches in valid UTF-8, from left to right. An expression that takes too many steps is a failure.
  Result<std::vector<Span>> find(std::string_view text) const;

 private:
  struct Code;
  struct Free {
    void operator()(Code* code) const;
  };
  static Result<Regex> compile_translated(const std::string& pattern, const std::string& where, uint32_t most_steps);
  Regex(std::unique_ptr<Code, Free> code, std::string where) : code_(std::move(code)), where_(std::move(where)) {}

  std::unique_ptr<Code, Free> code_;
  std::string where_;
};

}  // namespace zoexport
