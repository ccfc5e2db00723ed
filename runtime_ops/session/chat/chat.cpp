#include "session/chat/chat.h"

#include <algorithm>
#include <array>
#include <utility>

namespace zoexport {
namespace {

// Names of an assistant's thoughts. Templates read the first, gpt-oss's the second.
constexpr std::array kThoughts = {"reasoning_content", "thinking", "reasoning"};

// Without nulls, which templates would write as None, and with the thoughts under the names that templates read.
Message as_transformers_gives(const Message& message) {
  Message given = Message::object();
  const char* const* thought = std::find_if(kThoughts.begin(), kThoughts.end(), [&](const char* name) {
    return message.contains(name) && !message[name].is_null();
  });
  if (thought != kThoughts.end()) {
    given["thinking"] = message[*thought];
  }
  for (const auto& entry : message.items()) {
    if (!entry.value().is_null()) {
      given[entry.key()] = entry.value();
    }
  }
  if (thought != kThoughts.end()) {
    given["reasoning_content"] = message[*thought];
  }
  return given;
}

// OpenAI's identifiers of messages and calls; they carry no content.
constexpr std::array kLabels = {"id", "name", "tool_call_id"};

// The first key of a message, with something behind it, that the template did not ask for; empty without one.
std::string unread(const jinja::Dict& message, const Message& given) {
  const auto read = [&](const std::string& key) { return message.read.count(key) > 0; };
  const bool thoughts = std::any_of(kThoughts.begin(), kThoughts.end(), read);
  for (const auto& entry : given.items()) {
    const bool nothing = entry.value().empty() || entry.value() == "" ||
                         std::find(kLabels.begin(), kLabels.end(), entry.key()) != kLabels.end();
    const bool thought = std::find(kThoughts.begin(), kThoughts.end(), entry.key()) != kThoughts.end();
    if (!nothing && !message.all_read && !(thought ? thoughts : read(entry.key()))) {
      return entry.key();
    }
  }
  return {};
}

}  // namespace

Message message(const std::string& role, const std::string& content) { return {{"role", role}, {"content", content}}; }

Result<Chat> Chat::open(const TextSpec& text) {
  if (!text.chat) {
    return Failure{ZO_BUNDLE_ERROR, "chat", text.no_chat.empty() ? "a bundle without a chat template" : text.no_chat,
                   "a model whose tokenizer has a chat template",
                   "Give plain prompts, or compile the chat version of the model."};
  }
  ZO_ASSIGN(program, jinja::Template::parse(text.chat->source));
  Chat chat(std::move(program));
  chat.tokens_.assign(text.chat->tokens.begin(), text.chat->tokens.end());
  return chat;
}

Result<jinja::Rendered> Chat::write(const std::vector<Message>& messages, const Message& tools, bool reply,
                                    std::time_t now) const {
  jinja::List list;
  for (const Message& one : messages) {
    list.push_back(jinja::from_json(as_transformers_gives(one)));
  }
  jinja::Dict variables;
  // The variables that transformers passes; `documents` is for retrieval, which no data set here has.
  variables.entries = {{"messages", list},
                       {"tools", jinja::from_json(tools)},
                       {"documents", jinja::from_json(nullptr)},
                       {"add_generation_prompt", reply}};
  for (const auto& [name, token] : tokens_) {
    variables.entries.emplace_back(name, token);
  }
  ZO_ASSIGN(text, program_.render(variables, now));
  for (size_t i = 0; i < list.size(); ++i) {
    if (const std::string key = unread(*list[i].dict(), messages[i]); !key.empty()) {
      return Failure{ZO_DATA_ERROR, "message " + std::to_string(i + 1), "the key '" + key + "'",
                     "keys that the model's chat template reads in a message of this role",
                     "Write what it says into the content, or remove the key."};
    }
  }
  if (!tools.empty() && variables.read.count("tools") == 0) {
    return Failure{ZO_DATA_ERROR, "tools", "tools, which the model's chat template does not read",
                   "a model that is trained with tools", "Write them into the system message, or remove the key."};
  }
  return text;
}

}  // namespace zoexport
