// A chat template's text to a tree.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "session/chat/value.h"
#include "session/result.h"

namespace zoexport::jinja {

enum class Kind {
  // expressions
  kConstant,
  kName,
  kList,
  kDict,
  kAttribute,
  kItem,
  kSlice,
  kCall,
  kFilter,
  kTest,
  kNot,
  kSign,
  kBinary,
  kAnd,
  kOr,
  kCompare,
  kConcatenation,
  kChoice,
  // statements
  kText,
  kPrint,
  kFor,
  kIf,
  kSet,
  kSetBlock,
  kMacro,
  kFilterBlock,
  kGeneration,
  kBreak,
  kContinue,
};

using Nodes = std::vector<std::unique_ptr<Node>>;

struct Node {
  Kind kind = Kind::kConstant;
  std::string text = {};                // a name, an operator, or text that is written as it is
  Value value = {};                     // of a constant
  std::vector<std::string> names = {};  // targets of for and set, operators of a comparison
  Nodes nodes = {};                     // operands; of an argument's list those behind the first. Some may be null
  std::vector<std::pair<std::string, std::unique_ptr<Node>>> named = {};  // arguments by name; a macro's parameters
  Nodes body = {};
  Nodes otherwise = {};
};

// Jinja as transformers sets it up: trim_blocks, lstrip_blocks, break and continue, and generation.
Result<Nodes> parse(const std::string& source);

}  // namespace zoexport::jinja
