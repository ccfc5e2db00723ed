// JSON files of a state folder that carry a version of their form and a CRC-32 of the rest.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "session/result.h"

namespace zoexport {

// The document with `crc32`, that of its compact form with sorted keys in ASCII.
nlohmann::json sealed(nlohmann::json document);

// Reads one whose `schema_version` is at most `schema`. `expected` is what a damaged one should hold, `fix` what to do then.
Result<nlohmann::json> read_sealed(const std::string& path, int64_t schema, const std::string& expected,
                                   const std::string& fix);

}  // namespace zoexport
