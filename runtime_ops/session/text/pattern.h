// Pattern of a tokenizer.json: {"String": TEXT} or {"Regex": EXPRESSION}, or a kind of characters.
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
  static Pattern exactly(std::string text) { return {std::move(text), std::nullopt, nullptr}; }
  // Each character of a kind.
  static Pattern each(bool (*kind)(char32_t)) { return {"", std::nullopt, kind}; }
  static Result<Pattern> regex(const std::string& expression, const std::string& where);

  Result<std::vector<Span>> find(std::string_view text) const;
  // `text` with `content` in place of every match.
  Result<std::string> replaced(std::string_view text, const std::string& content) const;
  // The text that it looks for, if it looks for one.
  const std::string* text() const { return regex_ || kind_ != nullptr ? nullptr : &text_; }

 private:
  Pattern(std::string text, std::optional<Regex> regex, bool (*kind)(char32_t))
      : text_(std::move(text)), regex_(std::move(regex)), kind_(kind) {}

  std::string text_;
  std::optional<Regex> regex_;
  bool (*kind_)(char32_t);
};

}  // namespace zoexport
