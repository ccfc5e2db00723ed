// Description of a state folder, without its bundle.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "session/result.h"

namespace zoexport {

// The object of zo_state_describe. Reads alone, also a state that is being trained.
Result<nlohmann::json> describe_state(const std::string& path);

}  // namespace zoexport
