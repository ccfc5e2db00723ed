// Canonical JSON: the canonical text of a canonical text is that text.
#include "fuzz.h"
#include "session/manifest/canonical.h"
#include "session/storage/json_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace zoexport;
  const std::string text = fuzz::text(data, size);
  const auto read = parse_json(text.data(), text.data() + text.size(), ZO_BUNDLE_ERROR, "document", "Fix it.");
  const auto canonical = canonical_json(text, "bundle_id");
  MUST(!read.ok() || canonical.ok());
  if (read.ok()) {
    const auto again = canonical_json(*canonical, "bundle_id");
    MUST(again.ok() && *again == *canonical);
    MUST(parse_json(canonical->data(), canonical->data() + canonical->size(), ZO_BUNDLE_ERROR, "document", "").ok());
  }
  return 0;
}
