// The member "text" of a manifest: how a model's generated text ends, and how its conversations are written
// (docs/formats.md).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace zoexport {

class JsonNode;

// A model's chat template, as transformers runs it.
struct ChatTemplate {
  std::string source;                         // in Jinja's language
  std::map<std::string, std::string> tokens;  // that it names, such as bos_token
  std::vector<int64_t> end_tokens;            // that end a turn, in addition to those of all texts
};

// The token of an encoder that stands for what is predicted.
struct MaskToken {
  std::string text;
  int64_t id = 0;
};

struct TextSpec {
  std::vector<int64_t> end_tokens;   // after which nothing more is generated
  std::optional<int64_t> eos_token;  // end token that training appends to texts and completions
  std::optional<ChatTemplate> chat;
  std::string no_chat;            // why there is none
  std::optional<MaskToken> mask;  // of masked language models

  bool ends(int64_t token) const;  // whether it is one of end_tokens
};

// `node` is the member.
TextSpec read_text_spec(const JsonNode& node, int64_t vocab_size);

}  // namespace zoexport
