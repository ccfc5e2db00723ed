// A bundle as one file: a ZIP archive of its stored files, the signature among them (docs/formats.md, "Packed bundle").
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "session/manifest/signature.h"
#include "session/parts.h"
#include "session/result.h"

namespace zoexport {

struct UnpackOptions {
  const TrustedKeys* trusted = nullptr;  // one of them must have signed the bundle; null: any bundle
  bool replace = false;                  // what is at the folder gives way
  GoOn go_on;                            // of bytes
};

// Writes the bundle in `file` to `folder`, whole or not at all. Its signature is checked before any of it is parsed, its
// hashes while it is copied, and that there is room before that.
Status unpack_bundle(const std::string& file, const std::string& folder, const UnpackOptions& options);

}  // namespace zoexport
