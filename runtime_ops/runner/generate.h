// The verb that generates.
#pragma once

#include <csignal>
#include <nlohmann/json.hpp>

#include "runner/options.h"
#include "zoexport/session.h"

namespace zoexport::runner {

// Continues the options' prompt, with what was trained or with an adapter; `out` gets the keys of `zoexport generate --json`.
// Without --json the text is printed as it comes. Of a file of prompts each result is printed as a line of JSON. `stop` is looked
// at after every token.
zo_status generate(const Options& options, zo_session* session, const volatile std::sig_atomic_t& stop,
                   nlohmann::json& out, zo_error& error);

}  // namespace zoexport::runner
