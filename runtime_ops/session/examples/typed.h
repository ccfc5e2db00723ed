// Examples that a user typed, as lines of a data file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "session/result.h"

namespace zoexport {

// The line of {"prompt", "completion"} or {"messages"}, which parse_record (records.h) takes; `where` names it.
Result<std::string> typed_line(const nlohmann::json& example, const std::string& where);

}  // namespace zoexport
