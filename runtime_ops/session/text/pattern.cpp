#include "session/text/pattern.h"

#include "session/text/made_text.h"
#include "session/text/utf8.h"

namespace zoexport {

Result<Pattern> Pattern::read(const JsonNode& node) {
  if (node.has("String")) {
    return exactly(node.member("String").text());
  }
  if (!node.has("Regex")) {
    node.problem("a pattern: String or Regex");
    return exactly("");
  }
  const JsonNode expression = node.member("Regex");
  return regex(expression.text(), expression.where());
}

Result<Pattern> Pattern::regex(const std::string& expression, const std::string& where) {
  ZO_ASSIGN(compiled, Regex::compile(expression, where));
  return Pattern("", std::move(compiled), nullptr);
}

Result<std::vector<Span>> Pattern::find(std::string_view text) const {
  if (regex_) {
    return regex_->find(text);
  }
  std::vector<Span> matches;
  if (kind_ != nullptr) {
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      if (kind_(next_character(text, at))) {
        matches.push_back({begin, at});
      }
    }
    return matches;
  }
  if (text_.empty()) {
    return matches;
  }
  for (size_t at = text.find(text_); at != std::string_view::npos; at = text.find(text_, at + text_.size())) {
    matches.push_back({at, at + text_.size()});
  }
  return matches;
}

Result<std::string> Pattern::replaced(std::string_view text, const std::string& content) const {
  ZO_ASSIGN(matches, find(text));
  std::string result;
  size_t end = 0;
  for (const Span& match : matches) {
    result.append(text.substr(end, match.begin - end)).append(content);
    ZO_TRY(check_made(result.size()));
    end = match.end;
  }
  result.append(text.substr(end));
  return result;
}

}  // namespace zoexport
