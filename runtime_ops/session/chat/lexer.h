// A chat template's text to tokens.
#pragma once

#include <string>
#include <vector>

#include "session/result.h"

namespace zoexport::jinja {

enum class Type { kText, kPrint, kBlock, kClose, kName, kString, kInteger, kFloat, kOperator, kFinish };

struct Token {
  Type type;
  std::string text;
  int line;
};

// What is wrong with a template.
Failure broken(int line, const std::string& found, const std::string& expected);

// The last one is kFinish. Blanks around tags are cut as Jinja does with trim_blocks and lstrip_blocks.
Result<std::vector<Token>> tokens_of(const std::string& source);

}  // namespace zoexport::jinja
