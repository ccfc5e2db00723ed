// The verb that generates.
#pragma once

#include <csignal>
#include <nlohmann/json.hpp>

#include "runner/options.h"
#include "zoexport/session.h"

namespace zoexport::runner {

// Continues the options' prompt, with what was trained or with an adapter; returns the keys of `zoexport generate --json`.
// Without --json it prints the text as it comes. For a file of prompts it prints each result as a line of JSON. It checks
// `stop` after every token.
Result<nlohmann::json> generate(const Options& options, zo_session* session, const volatile std::sig_atomic_t& stop);

}  // namespace zoexport::runner
