// The member "text" of a manifest: how a model's generated text ends, and how a conversation is written for it
// (docs/text.md).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace zoexport {

class JsonNode;

// What of a message's content is written: all of it, all but white space around it, what comes behind the thoughts in it, or
// its thought between <think> and </think>, which may be empty, and then that.
enum class ContentForm { kWhole, kStripped, kAnswer, kThought };

// The answer that a conversation ends with.
struct LastAnswer {
  std::map<std::string, std::string> before;  // what is written before it, by what stands first
  ContentForm content = ContentForm::kWhole;
  std::string end;  // what is written behind it
};

// A model's chat template in pieces.
struct ChatForm {
  // What is written between what stands first ("begin" or a role) and what follows ("system", "user", "assistant", "tool", "end", or
  // "reply": the answer that is to be generated). U+E000 stands for the date.
  std::map<std::string, std::map<std::string, std::string>> between;
  std::map<std::string, ContentForm> content;  // by role
  std::string date;                            // its format, as strftime has it; empty without one
  std::vector<int64_t> end_tokens;             // with which a turn ends, beside those of all texts
  std::optional<LastAnswer> answer;            // where it is written otherwise than one that is followed
  bool reasoning = false;                      // a message's reasoning is written as the thought of its content
};

// The token of an encoder that stands for what is predicted.
struct MaskToken {
  std::string text;
  int64_t id = 0;
};

struct TextSpec {
  std::vector<int64_t> end_tokens;   // after which nothing more is generated
  std::optional<int64_t> eos_token;  // end token that training appends to texts and completions
  std::optional<ChatForm> chat;
  std::string no_chat;            // why there is no chat
  std::optional<MaskToken> mask;  // of masked language models

  bool ends(int64_t token) const;  // whether it is one of end_tokens
};

inline constexpr char kDatePlace[] = "\xEE\x80\x80";  // U+E000

// `node` is the member.
TextSpec read_text_spec(const JsonNode& node, int64_t vocab_size);

}  // namespace zoexport
