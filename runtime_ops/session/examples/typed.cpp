#include "session/examples/typed.h"

#include <algorithm>

#include "session/examples/records.h"

namespace zoexport {
namespace {

using nlohmann::json;

// Roles that apps offer; a chat template may know more.
constexpr const char* kRoles[] = {"system", "user", "assistant"};

}  // namespace

Result<std::string> typed_line(const json& example, const std::string& where) {
  nlohmann::ordered_json line = nlohmann::ordered_json::object();
  for (const char* const key : {"prompt", "completion", "messages"}) {
    if (example.is_object() && example.contains(key) && !example[key].is_null()) {
      line[key] = example[key];
    }
  }
  if (line.contains("messages") && line.size() > 1) {
    return unusable(where, "a prompt and messages", "one of them", "Leave the other out.");
  }
  size_t number = 0;
  for (const auto& message : line.value("messages", nlohmann::ordered_json::array())) {
    const std::string place = where + ", message " + std::to_string(++number);
    const auto role = message.is_object() ? message.value("role", json()) : json();
    if (std::none_of(std::begin(kRoles), std::end(kRoles), [&](const char* one) { return role == one; })) {
      return unusable(place, "the role " + (role.is_string() ? "'" + role.get<std::string>() + "'" : role.dump()),
                      "'system', 'user' or 'assistant'", "Correct the role.");
    }
  }
  std::string text = line.dump();
  // The line must be readable, and is refused in the reader's words.
  ZO_TRY(parse_record(text, where));
  return text;
}

}  // namespace zoexport
