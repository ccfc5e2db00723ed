#include "session/manifest/text_spec.h"

#include <algorithm>

#include "session/storage/json_reader.h"

namespace zoexport {
namespace {

constexpr int64_t kMostIds = int64_t{1} << 31;
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

ChatTemplate read_chat(const JsonNode& node, int64_t vocab_size) {
  ChatTemplate chat;
  chat.source = node.member("template").text();
  for (const auto& [name, token] : node.member("tokens").entries()) {
    chat.tokens[name] = token.text();
  }
  chat.end_tokens = read_tokens(node.member("end_tokens"), vocab_size);
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
