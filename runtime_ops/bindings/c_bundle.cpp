// The C ABI over bundles that no session has open.
#include <optional>

#include "bindings/c_support.h"
#include "session/manifest/manifest.h"
#include "session/manifest/packed_bundle.h"
#include "zoexport/session.h"

using namespace zoexport::c;
using zoexport::Status;

zo_status zo_bundle_unpack(const char* file, const char* folder, const zo_unpack_options* options, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_TRY(check_path(file, "file"));
    ZO_TRY(check_path(folder, "folder"));
    zo_unpack_options given = {};
    if (options != nullptr) {
      ZO_TRY(read_struct(*options, sizeof(zo_unpack_options), "zo_unpack_options", given));
    }
    zoexport::UnpackOptions chosen;
    chosen.replace = given.replace != 0;
    std::optional<zoexport::TrustedKeys> trusted;
    ZO_TRY(read_keys(given.trusted_keys, trusted));
    chosen.trusted = trusted ? &*trusted : nullptr;
    chosen.go_on = Parts(given.on_progress, given.user);
    std::string target = folder;
    while (target.size() > 1 && target.back() == '/') {
      target.pop_back();
    }
    return zoexport::unpack_bundle(file, target, chosen);
  });
}

zo_status zo_bundle_engines(const char* bundle, const zo_open_options* options, zo_engines* engines, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_TRY(check_path(bundle, "bundle"));
    ZO_REQUIRE(engines);
    zo_open_options given;
    ZO_TRY(read_options(options, given));
    std::optional<zoexport::TrustedKeys> trusted;
    ZO_TRY(read_keys(given.trusted_keys, trusted));
    ZO_ASSIGN(folder, zoexport::open_bundle(bundle));
    ZO_ASSIGN(manifest, zoexport::read_manifest(folder, trusted ? &*trusted : nullptr));
    zo_engines found = {};
    copy_text(found.own, manifest.engine);
    copy_text(found.fallback, manifest.fallback ? manifest.fallback->engine : "");
    return write_struct(found, sizeof(zo_engines), "zo_engines", engines);
  });
}
