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
  std::string text;  // every token is a label
};

struct CompletionRecord {
  std::string prompt;
  std::vector<std::string> completions;  // all different, several where they are compared
  size_t target = 0;                     // the right one
  bool pair = false;                     // of a chosen and a rejected answer, in this order
};

// Conversations that end with the assistant's turn, which is learned; a pair has two, which differ only in that turn.
struct ChatRecord {
  std::vector<Message> messages;
  std::optional<std::vector<Message>> rejected;
  Message tools;  // a list, or null
};

// An instruction, its input, and the learned answer: a conversation if the model has a chat template.
struct InstructionRecord {
  std::string instruction;
  std::string input;  // may be empty
  std::string output;
};

// Return the user's message of an instruction.
std::string asked(const InstructionRecord& record);

using Record = std::variant<TextRecord, CompletionRecord, ChatRecord, InstructionRecord>;

// A prompt to generate after: a text or messages.
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

// Parse one line; `where` names it. Keys that do not belong to the example's shape are added to `unused`.
Result<Record> parse_record(const std::string& line, const std::string& where, std::set<std::string>* unused = nullptr);
Result<Prompt> parse_prompt(const std::string& line, const std::string& where);

}  // namespace zoexport
