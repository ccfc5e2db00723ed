// What a tokenizer.json looks for in a text: {"String": TEXT} or {"Regex": EXPRESSION}.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "session/result.h"
#include "session/storage/json_reader.h"
#include "session/text/regex.h"

namespace zoexport {

class Pattern {
 public:
  // A bad one is a problem of the document, or a failure.
  static Result<Pattern> read(const JsonNode& node);
  static Pattern exactly(std::string text) { return {std::move(text), std::nullopt}; }
  static Result<Pattern> regex(const std::string& expression, const std::string& where);

  Result<std::vector<Span>> find(std::string_view text) const;
  // `text` with `content` in place of every match.
  Result<std::string> replaced(std::string_view text, const std::string& content) const;
  // The text that it looks for, if it looks for one.
  const std::string* text() const { return regex_ ? nullptr : &text_; }

 private:
  Pattern(std::string text, std::optional<Regex> regex) : text_(std::move(text)), regex_(std::move(regex)) {}

  std::string text_;
  std::optional<Regex> regex_;
};

}  // namespace zoexport
