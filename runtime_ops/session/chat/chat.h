// Conversations as a model reads them: as its chat template writes them (docs/formats.md).
#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "session/chat/template.h"
#include "session/manifest/text_spec.h"
#include "session/result.h"

namespace zoexport {

// A message as templates read it: an object with "role", a text, and what the role has, such as "content" or "tool_calls".
using Message = nlohmann::ordered_json;

Message message(const std::string& role, const std::string& content);

// A bundle's chat template.
class Chat {
 public:
  // Open the template; the failure explains why there is none.
  static Result<Chat> open(const TextSpec& text);

  // The conversation as text; `reply`: up to where the assistant's answer begins. It names its special tokens, so that none are
  // to be added when it is tokenized. `tools`: what the assistant can call, or null. `now` is for templates that write the date.
  // A key that the template does not read is a failure, as its content would be lost.
  Result<jinja::Rendered> write(const std::vector<Message>& messages, const Message& tools, bool reply,
                                std::time_t now) const;

 private:
  explicit Chat(jinja::Template program) : program_(std::move(program)) {}

  jinja::Template program_;
  std::vector<std::pair<std::string, std::string>> tokens_;
};

}  // namespace zoexport
