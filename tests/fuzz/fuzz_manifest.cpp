// A manifest: whatever it says, it is read or refused. Its id is made right, so that what the id protects is reached.
#include "fuzz.h"
#include "session/manifest/canonical.h"
#include "session/manifest/manifest.h"
#include "session/manifest/needs.h"
#include "session/storage/sha256.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace zoexport;
  std::string text = fuzz::text(data, size);
  const std::string key = "\"bundle_id\": \"";
  const size_t at = text.find(key);
  const auto canonical = canonical_json(text, "bundle_id");
  if (canonical.ok() && at != std::string::npos && text.size() >= at + key.size() + 64) {
    text.replace(at + key.size(), 64, sha256_hex(canonical->data(), canonical->size()));
  }
  const auto manifest = parse_manifest(text, "manifest");
  if (!manifest.ok()) {
    MUST(!manifest.failure().where.empty() && !manifest.failure().found.empty() && !manifest.failure().fix.empty());
    return 0;
  }
  MUST(manifest->max_length > 0 && !manifest->stages.empty());
  for (const ProgramSpec& program : manifest->programs) {
    MUST(manifest->files.count(program.file) == 1);
    for (const ValueSpec& value : program.inputs) {
      MUST(value_bytes(value) <= kMostTensor);
    }
  }
  for (const auto& file : manifest->files) {
    MUST(file.first.front() != '/' && file.first.find("..") == std::string::npos);
  }
  return 0;
}
