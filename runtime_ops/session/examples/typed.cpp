#include "session/examples/typed.h"

#include <nlohmann/json.hpp>

#include "session/examples/records.h"
#include "session/text/utf8.h"

namespace zoexport {
namespace {

Status check_text(const std::string& text, const std::string& where) {
  return valid_utf8(text) == text.size()
             ? Status()
             : Status(unusable(where, "text that is not UTF-8", "UTF-8", "Give the text as UTF-8."));
}

}  // namespace

Result<std::string> typed_line(const Typed& example, const std::string& where) {
  nlohmann::ordered_json line;
  if (const auto* pair = std::get_if<0>(&example)) {
    ZO_TRY(check_text(pair->first, where + ", prompt"));
    ZO_TRY(check_text(pair->second, where + ", completion"));
    line = {{"prompt", pair->first}, {"completion", pair->second}};
  } else {
    line["messages"] = nlohmann::ordered_json::array();
    for (const Message& message : std::get<1>(example)) {
      const std::string place = where + ", message " + std::to_string(line["messages"].size() + 1);
      if (message.role != "system" && message.role != "user" && message.role != "assistant") {
        return unusable(place, "the role '" + message.role.substr(0, valid_utf8(message.role)) + "'",
                        "'system', 'user' or 'assistant'", "Correct the role.");
      }
      ZO_TRY(check_text(message.content, place));
      line["messages"].push_back({{"role", message.role}, {"content", message.content}});
    }
  }
  std::string text = line.dump();
  // What is written must be what can be read, and is refused in the same words.
  ZO_TRY(parse_record(text, where));
  return text;
}

}  // namespace zoexport
