// Verbs of the C ABI, as a job calls them.
#pragma once

#include <string>

#include "session/result.h"
#include "zoexport/session.h"

namespace zoexport {

// A verb of the C ABI as a Status.
template <typename Verb, typename... Arguments>
Status call(Verb verb, Arguments... arguments) {
  zo_error error;
  const zo_status status = verb(arguments..., &error);
  return status == ZO_OK ? Status() : Status(Failure{status, error.where, error.found, error.expected, error.fix});
}

// The digest of examples; of none (null) an empty one.
inline Result<std::string> digest_of(const zo_dataset* examples) {
  char digest[65] = {};
  if (examples != nullptr) {
    ZO_TRY(call(zo_dataset_digest, examples, static_cast<char*>(digest)));
  }
  return std::string(static_cast<const char*>(digest));
}

}  // namespace zoexport
