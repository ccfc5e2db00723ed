// The C ABI over bundles that no session has open.
#include "bindings/c_support.h"
#include "session/manifest/manifest.h"
#include "session/manifest/packed_bundle.h"

using namespace zoexport::c;
using zoexport::Options;
using zoexport::Status;

zo_status zo_bundle_unpack(const char* file, const char* folder, const char* options, zo_on_part on_part, void* user,
                           zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_TRY(check_path(file, "file"));
    ZO_TRY(check_path(folder, "folder"));
    ZO_ASSIGN(given, Options::parse("unpack", options));
    ZO_ASSIGN(trusted, trusted_keys(given));
    zoexport::UnpackOptions chosen;
    chosen.replace = given.flag("replace");
    chosen.trusted = trusted ? &*trusted : nullptr;
    chosen.go_on = Parts(on_part, user);
    std::string target = folder;
    while (target.size() > 1 && target.back() == '/') {
      target.pop_back();
    }
    return zoexport::unpack_bundle(file, target, chosen);
  });
}

zo_status zo_bundle_manifest(const char* bundle, const char* options, char** manifest, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_TRY(check_path(bundle, "bundle"));
    ZO_REQUIRE(manifest);
    ZO_ASSIGN(given, Options::parse("manifest", options));
    ZO_ASSIGN(trusted, trusted_keys(given));
    ZO_ASSIGN(folder, zoexport::open_bundle(bundle));
    ZO_ASSIGN(text, zoexport::verified_manifest(folder, trusted ? &*trusted : nullptr));
    return give_text(text, manifest);
  });
}
