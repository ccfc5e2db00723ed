// Conversations as a model reads them, by the form that its chat template was taken apart into (docs/text.md).
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "session/manifest/text_spec.h"
#include "session/result.h"

namespace zoexport {

struct Message {
  std::string role;
  std::string content;
  std::optional<std::string> reasoning = std::nullopt;  // what the assistant thought before
};

// As Python's strip: without all that it calls white space, which is more than Unicode does.
std::string stripped(const std::string& text);

// The conversation as text; `reply`: up to where the assistant's answer begins. It names its special tokens, so that none are
// to be added when it is tokenized. `now` is for templates that write the date.
Result<std::string> chat_text(const TextSpec& text, const std::vector<Message>& messages, bool reply, std::time_t now);

}  // namespace zoexport
