#include "session/examples/records.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "session/chat/texts.h"
#include "session/storage/json_reader.h"
#include "session/text/utf8.h"

namespace zoexport {
namespace {

using json = nlohmann::ordered_json;

const std::string kShapes = R"({"text"}, {"prompt", "completion"}, {"prompt", "completion", "choices"}, )"
                            R"({"prompt", "chosen", "rejected"}, {"messages"}, {"conversations"} or )"
                            R"({"instruction", "input", "output"})";
const std::string kPrompts = R"({"prompt"}, {"messages"}, {"conversations"} or {"instruction", "input"})";
constexpr std::array kKnown = {"text",   "prompt",   "completion",    "choices",     "messages",
                               "chosen", "rejected", "conversations", "instruction", "output"};
// Names that other data sets use for the roles of a conversation.
const std::map<std::string, std::string> kRoles = {{"human", "user"},        {"gpt", "assistant"},
                                                   {"chatgpt", "assistant"}, {"bing", "assistant"},
                                                   {"bard", "assistant"},    {"model", "assistant"}};
constexpr double kAlike = 0.8;  // of keys, as Python's difflib has it
constexpr size_t kLongestShown = 200;

std::string quoted(const std::string& text) { return "'" + text.substr(0, kLongestShown) + "'"; }

bool blank(const std::string& text) { return jinja::cut(text, std::nullopt, true, true).empty(); }

std::string kind(const json& value) {
  return value.is_object()    ? "object"
         : value.is_array()   ? "list"
         : value.is_string()  ? "string"
         : value.is_boolean() ? "true or false"
         : value.is_null()    ? "null"
                              : "number";
}

bool known(const std::string& key) { return std::find(kKnown.begin(), kKnown.end(), key) != kKnown.end(); }

// Count the characters that two texts share: in their longest common substring and, recursively, on either side of it.
size_t matching(const std::string& a, const std::string& b) {
  size_t best = 0, begin_a = 0, begin_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) {
      size_t length = 0;
      while (i + length < a.size() && j + length < b.size() && a[i + length] == b[j + length]) {
        ++length;
      }
      if (length > best) {
        best = length;
        begin_a = i;
        begin_b = j;
      }
    }
  }
  return best == 0 ? 0
                   : best + matching(a.substr(0, begin_a), b.substr(0, begin_b)) +
                         matching(a.substr(begin_a + best), b.substr(begin_b + best));
}

// The known key that `key` may have been meant as.
std::optional<std::string> close_key(std::string key) {
  if (key.size() > 2 * std::string(kKnown[2]).size()) {
    return std::nullopt;
  }
  std::transform(key.begin(), key.end(), key.begin(),
                 [](char one) { return one >= 'A' && one <= 'Z' ? static_cast<char>(one - 'A' + 'a') : one; });
  std::optional<std::string> best;
  double most = kAlike;
  for (const std::string one : kKnown) {
    const double alike = 2.0 * static_cast<double>(matching(one, key)) / static_cast<double>(one.size() + key.size());
    if (alike >= most && (!best || alike > most)) {
      best = one;
      most = alike;
    }
  }
  return best;
}

// Other keys are allowed (ids, sources), but "choice" for "choices" would change the task silently.
Status refuse_misspelled(const json& content, const std::string& where) {
  for (const auto& entry : content.items()) {
    const auto close = known(entry.key()) ? std::nullopt : close_key(entry.key());
    if (close && !content.contains(*close)) {
      return unusable(where, "the key " + quoted(entry.key()), "a key such as " + quoted(*close),
                      "Did you mean " + quoted(*close) + "? If not, rename the key.");
    }
  }
  return {};
}

Result<std::string> text_of(const json& content, const char* key, const std::string& where) {
  const auto found = content.find(key);
  if (found == content.end()) {
    return unusable(where, "no " + quoted(key), known(key) ? "the keys " + kShapes : R"(both "role" and "content")",
                    "Add " + quoted(key) + ".");
  }
  if (!found->is_string()) {
    return unusable(where, quoted(key) + " that is " + kind(*found), "text",
                    "Write " + quoted(key) + " as a JSON string.");
  }
  return found->get<std::string>();
}

Result<std::vector<std::string>> choices_of(const json& choices, const std::string& completion,
                                            const std::string& where) {
  const bool texts = choices.is_array() &&
                     std::all_of(choices.begin(), choices.end(), [](const json& one) { return one.is_string(); });
  if (!texts) {
    return unusable(where, "'choices' that is " + kind(choices) + " and not a list of text",
                    "a list of completions to compare", R"(Write "choices": [" yes", " no"].)");
  }
  auto found = choices.get<std::vector<std::string>>();
  const std::set<std::string> different(found.begin(), found.end());
  const std::string shown = choices.dump().substr(0, kLongestShown);
  if (found.size() < 2 || different.count("") > 0 || different.size() < found.size()) {
    return unusable(where, "the choices " + shown, "at least two different completions, none of them empty",
                    "Remove repeated and empty choices.");
  }
  if (different.count(completion) == 0) {
    return unusable(where, "the completion " + quoted(completion) + ", which is not among the choices " + shown,
                    "one of the choices, spaces included", "Make the completion equal to one of the choices.");
  }
  return found;
}

Result<Record> completion_record(const json& content, const std::string& where) {
  ZO_ASSIGN(prompt, text_of(content, "prompt", where));
  ZO_ASSIGN(completion, text_of(content, "completion", where));
  if (completion.empty()) {
    return unusable(where, "an empty 'completion'", "text to be learned", "Give the completion, or remove the line.");
  }
  if (!content.contains("choices")) {
    return Record(CompletionRecord{prompt, {completion}, 0, false});
  }
  ZO_ASSIGN(choices, choices_of(content.at("choices"), completion, where));
  const auto target = std::find(choices.begin(), choices.end(), completion) - choices.begin();
  return Record(CompletionRecord{prompt, std::move(choices), static_cast<size_t>(target), false});
}

// Return whether a message has more than text: a content of parts, or calls of tools with null content.
bool says_more(const json& message) {
  const bool calls = message.contains("tool_calls") && !message.at("tool_calls").empty();
  const auto content = message.find("content");
  const bool none = content == message.end() || content->is_null();
  return none ? calls : content->is_array() && !content->empty();
}

// The messages under a key.
Result<std::vector<Message>> turns_of(const json& messages, const char* key, const std::string& where) {
  if (!messages.is_array() || messages.empty()) {
    const bool answered = std::string(key) != "prompt";
    return unusable(where, quoted(key) + " that is " + (messages.is_array() ? "empty" : kind(messages)),
                    std::string(R"(a list of {"role", "content"})") +
                        (answered ? " that ends with the assistant" : ", as the answers are lists"),
                    "Write the conversation's turns in order.");
  }
  std::vector<Message> turns;
  for (const json& message : messages) {
    const std::string list =
        std::string(key) == "messages" || std::string(key) == "conversations" ? "" : ", " + std::string(key);
    const std::string place = where + list + ", message " + std::to_string(turns.size() + 1);
    if (!message.is_object()) {
      return unusable(place, "a JSON " + kind(message), R"(an object {"role", "content"})",
                      "Write each turn as an object.");
    }
    // ShareGPT's names of both.
    const bool other = message.contains("from") && message.contains("value");
    if (other && (message.contains("role") || message.contains("content"))) {
      return unusable(place, "both 'from' and 'role', or 'value' and 'content'", "one pair of names",
                      "Remove the other pair.");
    }
    ZO_ASSIGN(role, text_of(message, other ? "from" : "role", place));
    if (other || !says_more(message)) {
      ZO_TRY(text_of(message, other ? "value" : "content", place));
    }
    const auto known_role = kRoles.find(role);
    Message turn = {{"role", known_role == kRoles.end() ? role : known_role->second}};
    for (const auto& entry : message.items()) {
      if (entry.key() != "role" && entry.key() != "from") {
        turn[other && entry.key() == "value" ? "content" : entry.key()] = entry.value();
      }
    }
    turns.push_back(std::move(turn));
  }
  return turns;
}

// Return the tools that the assistant can call: a list, which some data sets store as text; null if there are none.
Result<Message> tools_of(const json& content, const std::string& where) {
  const auto found = content.find("tools");
  if (found == content.end() || found->is_null()) {
    return Message();
  }
  Message tools = *found;
  if (tools.is_string()) {
    const std::string text = tools;
    ZO_ASSIGN(parsed, parse_json<json>(text.data(), text.data() + text.size(), ZO_DATA_ERROR, where + ", tools",
                                       "Write the tools as a list."));
    tools = std::move(parsed);
  }
  if (!tools.is_array()) {
    return unusable(where, "'tools' that is " + kind(tools), "a list of JSON schemas", "Write the tools as a list.");
  }
  return tools;
}

Status check_answer(const std::vector<Message>& turns, const std::string& where) {
  const Message& last = turns.back();
  if (last["role"] != "assistant") {
    return unusable(where, "a last message from " + quoted(last["role"]),
                    "a last message from 'assistant', which is what is learned",
                    "End the conversation with the assistant's turn.");
  }
  if (!says_more(last) && blank(last["content"])) {
    return unusable(where, "an empty last message", "text to be learned",
                    "Give the assistant's answer, or remove the line.");
  }
  return {};
}

// The turns of a line: of one list, or of TRL's two, those of the prompt and those of the completion.
Result<std::vector<Message>> conversation_of(const json& content, const std::string& where) {
  const char* const key = content.contains("messages")        ? "messages"
                          : content.contains("conversations") ? "conversations"
                                                              : "prompt";
  ZO_ASSIGN(turns, turns_of(content.at(key), key, where));
  if (std::string(key) == "prompt" && content.contains("completion")) {
    ZO_ASSIGN(answer, turns_of(content.at("completion"), "completion", where));
    turns.insert(turns.end(), answer.begin(), answer.end());
  }
  return turns;
}

Result<Record> chat_record(const json& content, const std::string& where) {
  ZO_ASSIGN(turns, conversation_of(content, where));
  ZO_TRY(check_answer(turns, where));
  ZO_ASSIGN(tools, tools_of(content, where));
  return Record(ChatRecord{std::move(turns), std::nullopt, std::move(tools)});
}

// Alpaca's form.
Result<Record> instruction_record(const json& content, const std::string& where) {
  ZO_ASSIGN(instruction, text_of(content, "instruction", where));
  ZO_ASSIGN(output, text_of(content, "output", where));
  InstructionRecord record{std::move(instruction), "", std::move(output)};
  if (const auto input = content.find("input"); input != content.end() && !input->is_null()) {
    ZO_ASSIGN(text, text_of(content, "input", where));
    record.input = std::move(text);
  }
  if (blank(record.output)) {
    return unusable(where, "an empty 'output'", "text to be learned", "Give the answer, or remove the line.");
  }
  return Record(std::move(record));
}

Failure same_answers(const std::string& where) {
  return unusable(where, "a chosen and a rejected answer that are the same", "two different answers",
                  "Remove the line: nothing is preferred in it.");
}

// Read a pair of conversations: the turns of the prompt, if any, followed by those of "chosen" or "rejected".
Result<Record> chat_pair(const json& content, const std::string& where) {
  std::array<std::vector<Message>, 2> turns;
  if (content.contains("prompt")) {
    ZO_ASSIGN(prompt, turns_of(content.at("prompt"), "prompt", where));
    turns.fill(prompt);
  }
  for (size_t answer = 0; answer < turns.size(); ++answer) {
    const char* const key = answer == 0 ? "chosen" : "rejected";
    ZO_ASSIGN(given, turns_of(content.at(key), key, where));
    turns[answer].insert(turns[answer].end(), given.begin(), given.end());
    ZO_TRY(check_answer(turns[answer], where + ", " + key));
  }
  const auto [chosen, rejected] = std::mismatch(turns[0].begin(), turns[0].end(), turns[1].begin(), turns[1].end());
  if (chosen == turns[0].end() && rejected == turns[1].end()) {
    return same_answers(where);
  }
  if (turns[0].end() - chosen != 1 || turns[1].end() - rejected != 1) {
    return unusable(where, "conversations that differ before their last turn", "two answers to the same turns",
                    "Give the turns before the answers as \"prompt\".");
  }
  ZO_ASSIGN(tools, tools_of(content, where));
  return Record(ChatRecord{std::move(turns[0]), std::move(turns[1]), std::move(tools)});
}

Result<Record> pair_record(const json& content, const std::string& where) {
  for (const char* key : {"chosen", "rejected"}) {
    if (!content.contains(key)) {
      return unusable(where, "no " + quoted(key), "the keys " + kShapes, "Add " + quoted(key) + ".");
    }
  }
  if (content.at("chosen").is_array() && content.at("rejected").is_array()) {
    return chat_pair(content, where);
  }
  ZO_ASSIGN(prompt, text_of(content, "prompt", where));
  ZO_ASSIGN(chosen, text_of(content, "chosen", where));
  ZO_ASSIGN(rejected, text_of(content, "rejected", where));
  if (chosen.empty() || rejected.empty()) {
    return unusable(where, chosen.empty() ? "an empty 'chosen'" : "an empty 'rejected'", "text to be compared",
                    "Give the answer, or remove the line.");
  }
  if (chosen == rejected) {
    return same_answers(where);
  }
  return Record(CompletionRecord{std::move(prompt), {std::move(chosen), std::move(rejected)}, 0, true});
}

Result<json> object_of(const std::string& line, const std::string& where, const std::string& shapes) {
  if (valid_utf8(line) != line.size()) {
    return unusable(where, "bytes that are not UTF-8", "UTF-8 text",
                    "Convert the file, such as: iconv -f LATIN1 -t UTF-8 FILE > NEW.");
  }
  ZO_ASSIGN(content,
            parse_json<json>(line.data(), line.data() + line.size(), ZO_DATA_ERROR, where, "Correct the line."));
  if (!content.is_object()) {
    return unusable(where, "a JSON " + kind(content), "an object: " + shapes, "Write each example as an object.");
  }
  return content;
}

}  // namespace

std::string asked(const InstructionRecord& record) {
  return record.instruction + (record.input.empty() ? "" : "\n\n" + record.input);
}

Result<Record> parse_record(const std::string& line, const std::string& where, std::set<std::string>* unused) {
  ZO_ASSIGN(content, object_of(line, where, kShapes));
  ZO_TRY(refuse_misspelled(content, where));
  const bool text = content.contains("text");
  const bool messages = content.contains("messages") || content.contains("conversations");
  const bool twice = content.contains("messages") && content.contains("conversations");
  const bool pair = content.contains("chosen") || content.contains("rejected");
  const bool instruction = content.contains("instruction") && content.contains("output");
  const bool completion =
      (content.contains("prompt") && !pair) || content.contains("completion") || content.contains("choices");
  if (int{text} + int{messages} + int{completion} + int{pair} + int{instruction} != 1 || twice) {
    std::string keys;
    for (const auto& entry : content.items()) {
      keys += (keys.empty() ? "" : ", ") + quoted(entry.key());
    }
    return unusable(where, "the keys " + (keys.empty() ? "none" : keys.substr(0, kLongestShown)),
                    "exactly one of the shapes " + kShapes,
                    "Rename or remove keys so that the line has one of these shapes.");
  }
  if (unused != nullptr) {
    std::set<std::string> used = {"answers"};  // what is right for an answer is read elsewhere
    used.merge(text          ? std::set<std::string>{"text"}
               : messages    ? std::set<std::string>{"messages", "conversations", "tools"}
               : pair        ? std::set<std::string>{"prompt", "chosen", "rejected", "tools"}
               : instruction ? std::set<std::string>{"instruction", "input", "output"}
                             : std::set<std::string>{"prompt", "completion", "choices"});
    if (completion && content.contains("prompt") && content.at("prompt").is_array()) {
      used.insert("tools");
    }
    for (const auto& entry : content.items()) {
      if (used.count(entry.key()) == 0) {
        unused->insert(entry.key());
      }
    }
  }
  if (text) {
    ZO_ASSIGN(given, text_of(content, "text", where));
    return Record(TextRecord{std::move(given)});
  }
  const bool turns =
      completion && content.contains("completion") && content.contains("prompt") && content.at("prompt").is_array();
  return messages || turns ? chat_record(content, where)
         : pair            ? pair_record(content, where)
         : instruction     ? instruction_record(content, where)
                           : completion_record(content, where);
}

Result<Prompt> parse_prompt(const std::string& line, const std::string& where) {
  ZO_ASSIGN(content, object_of(line, where, kPrompts));
  const bool prompts = content.contains("prompt"), instruction = content.contains("instruction");
  const bool messages = content.contains("messages") || content.contains("conversations");
  if (int{prompts} + int{messages} + int{instruction} != 1) {
    return unusable(where, prompts || messages || instruction ? "several of them" : "none of them", kPrompts,
                    "Give the text that is to be continued, or the conversation that is to be answered.");
  }
  Prompt prompt;
  if (instruction) {
    json whole = content;
    whole.emplace("output", "-");  // an answer that is not needed
    ZO_ASSIGN(record, instruction_record(whole, where));
    const auto& given = std::get<InstructionRecord>(record);
    prompt.messages = {message("user", asked(given))};
    if (content.contains("output")) {
      prompt.answers.push_back(given.output);
    }
  } else if (prompts && !content.at("prompt").is_array()) {
    ZO_ASSIGN(given, text_of(content, "prompt", where));
    prompt.text = std::move(given);
    if (content.contains("completion")) {
      ZO_ASSIGN(completion, text_of(content, "completion", where));
      prompt.answers.push_back(std::move(completion));
    }
  } else {
    ZO_ASSIGN(turns, conversation_of(content, where));
    prompt.messages = std::move(turns);
    ZO_ASSIGN(tools, tools_of(content, where));
    prompt.tools = std::move(tools);
    if (const Message& last = prompt.messages.back(); last["role"] == "assistant") {
      if (last.contains("content") && last["content"].is_string()) {
        prompt.answers.push_back(last["content"]);
      }
      prompt.messages.pop_back();
      if (prompt.messages.empty()) {
        return unusable(where, "an answer alone", "a message to be answered before it", "Add the user's message.");
      }
    }
  }
  if (content.contains("answers")) {
    const json& answers = content.at("answers");
    if (!answers.is_array() ||
        !std::all_of(answers.begin(), answers.end(), [](const json& one) { return one.is_string(); })) {
      return unusable(where, "'answers' that are no list of texts", R"("answers": ["one", "another"])",
                      "Write the texts that count as right as a list.");
    }
    if (!answers.empty()) {
      prompt.answers = answers.get<std::vector<std::string>>();
    }
  }
  return prompt;
}

}  // namespace zoexport
