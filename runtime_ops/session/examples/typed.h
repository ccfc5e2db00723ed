// Examples that a person typed, as lines of a data file.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "session/result.h"
#include "session/text/chat.h"

namespace zoexport {

// A prompt and its completion, or the turns of a conversation.
using Typed = std::variant<std::pair<std::string, std::string>, std::vector<Message>>;

// The line of an example, which parse_record (records.h) takes; `where` names it.
Result<std::string> typed_line(const Typed& example, const std::string& where);

}  // namespace zoexport
