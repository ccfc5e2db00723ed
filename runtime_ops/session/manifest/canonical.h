// The bundle id: SHA-256 of the manifest's canonical text.
#pragma once

#include <string>

#include "session/result.h"

namespace zoexport {

// The JSON text with object keys in code-point order, no white space, UTF-8, numbers as they were written, and the top-level
// key `without` left out: Python's json.dumps(sort_keys=True, separators=(",", ":"), ensure_ascii=False).
Result<std::string> canonical_json(const std::string& text, const std::string& without);

}  // namespace zoexport
