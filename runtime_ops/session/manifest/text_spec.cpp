#include "session/manifest/text_spec.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "session/storage/json_reader.h"

namespace zoexport {
namespace {

constexpr std::array kFirst = {"begin", "system", "user", "assistant", "tool"};
constexpr std::array kSecond = {"system", "user", "assistant", "tool", "end", "reply"};
constexpr int64_t kMostIds = int64_t{1} << 31;
// Of dates: numbers, and names of days and months.
const char* const kDirectives = "aAbBdHjmMSyY%";

template <typename Names>
bool among(const Names& names, const std::string& name) {
  return std::any_of(names.begin(), names.end(), [&](const char* one) { return name == one; });
}

int64_t read_token(const JsonNode& node, int64_t vocab_size) {
  return node.integer(0, (vocab_size > 0 ? vocab_size : kMostIds) - 1);
}

std::vector<int64_t> read_tokens(const JsonNode& node, int64_t vocab_size) {
  std::vector<int64_t> tokens;
  for (const JsonNode& token : node.items()) {
    tokens.push_back(read_token(token, vocab_size));
  }
  return tokens;
}

ContentForm read_content(const JsonNode& node) {
  const std::string form = node.text();
  if (form != "whole" && form != "stripped" && form != "answer" && form != "thought") {
    node.problem("whole, stripped, answer or thought");
  }
  return form == "stripped"  ? ContentForm::kStripped
         : form == "answer"  ? ContentForm::kAnswer
         : form == "thought" ? ContentForm::kThought
                             : ContentForm::kWhole;
}

LastAnswer read_answer(const JsonNode& node) {
  LastAnswer answer;
  for (const auto& [first, text] : node.member("before").entries()) {
    if (!among(kFirst, first)) {
      text.problem("the name of a role, or begin");
    }
    answer.before[first] = text.text();
  }
  answer.content = read_content(node.member("content"));
  answer.end = node.member("end").text();
  return answer;
}

bool known_date(const std::string& format) {
  for (size_t at = format.find('%'); at != std::string::npos; at = format.find('%', at + 2)) {
    if (at + 1 == format.size() || std::strchr(kDirectives, format[at + 1]) == nullptr) {
      return false;
    }
  }
  return true;
}

ChatForm read_chat(const JsonNode& node, int64_t vocab_size) {
  ChatForm chat;
  for (const auto& [first, seconds] : node.member("between").entries()) {
    for (const auto& [second, text] : seconds.entries()) {
      if (!among(kFirst, first) || !among(kSecond, second)) {
        text.problem("the name of a role, begin, end or reply");
      }
      chat.between[first][second] = text.text();
    }
  }
  for (const auto& [role, form] : node.member("content").entries()) {
    chat.content[role] = read_content(form);
  }
  if (node.has("date")) {
    chat.date = node.member("date").text();
    if (!known_date(chat.date)) {
      node.member("date").problem("a date's format with %a %A %b %B %d %H %j %m %M %S %y %Y alone");
    }
  }
  if (node.has("answer")) {
    chat.answer = read_answer(node.member("answer"));
  }
  chat.reasoning = node.has("reasoning") && node.member("reasoning").boolean();
  if (node.has("end_tokens")) {
    chat.end_tokens = read_tokens(node.member("end_tokens"), vocab_size);
  }
  return chat;
}

}  // namespace

bool TextSpec::ends(int64_t token) const {
  return std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end();
}

TextSpec read_text_spec(const JsonNode& node, int64_t vocab_size) {
  TextSpec text;
  text.end_tokens = read_tokens(node.member("end_tokens"), vocab_size);
  if (node.has("eos_token")) {
    text.eos_token = read_token(node.member("eos_token"), vocab_size);
  }
  if (node.has("chat")) {
    text.chat = read_chat(node.member("chat"), vocab_size);
  }
  if (node.has("no_chat")) {
    text.no_chat = node.member("no_chat").text();
  }
  if (node.has("mask")) {
    const JsonNode mask = node.member("mask");
    text.mask = MaskToken{mask.member("text").text(), read_token(mask.member("id"), vocab_size)};
    if (text.mask->text.empty()) {
      mask.member("text").problem("the text of a token");
    }
  }
  return text;
}

}  // namespace zoexport
