// Lines of a data file, or of a file of prompts, as people write them: what a line means, before any tokenizer sees it.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "session/chat/chat.h"
#include "session/result.h"

namespace zoexport {

struct TextRecord {
  std::string text;  // every token of which is a label
};

struct CompletionRecord {
  std::string prompt;
  std::vector<std::string> completions;  // all different, several where they are compared
  size_t target = 0;                     // the right one
  bool pair = false;                     // of a chosen and a rejected answer, in this order
};

// Conversations of which the last turn is the assistant's, and is learned; of a pair two, which differ in that turn alone.
struct ChatRecord {
  std::vector<Message> messages;
  std::optional<std::vector<Message>> rejected;
  Message tools;  // a list, or null
};

// An instruction, what it is about, and the answer, which is learned: a conversation where the model has a chat template.
struct InstructionRecord {
  std::string instruction;
  std::string input;  // may be empty
  std::string output;
};

// What a user asks by it.
std::string asked(const InstructionRecord& record);

using Record = std::variant<TextRecord, CompletionRecord, ChatRecord, InstructionRecord>;

// What text is to be generated after: a text or messages.
struct Prompt {
  std::string text;
  std::vector<Message>
      messages;  // up to the answer: without the last one where that is the assistant's, as in training data
  Message tools;
  std::vector<std::string> answers;  // right ones: "answers", or else the completion or the last message
};

// An example that cannot be used; `where` names its line.
inline Failure unusable(const std::string& where, const std::string& found, const std::string& expected,
                        const std::string& fix) {
  return {ZO_DATA_ERROR, where, found, expected, fix};
}

// One line, which `where` names. Keys that an example has beside those of its shape are added to `unused`.
Result<Record> parse_record(const std::string& line, const std::string& where, std::set<std::string>* unused = nullptr);
Result<Prompt> parse_prompt(const std::string& line, const std::string& where);

}  // namespace zoexport
