// A bundle as one file: it is unpacked as its manifest has it, or one message says why not and nothing is left.
#include <filesystem>

#include "folder.h"
#include "session/manifest/manifest.h"
#include "session/manifest/packed_bundle.h"
#include "session/storage/files.h"

using namespace zoexport;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder("packed");
  folder.write("file", fuzz::text(data, size));
  const std::string target = folder.file("bundle");
  const Status unpacked = unpack_bundle(folder.file("file"), target, {});
  MUST(exists(target) == unpacked.ok() && !exists(folder.file(".bundle.unpacking")));
  if (unpacked.ok()) {
    auto opened = open_bundle(target);
    MUST(opened.ok());
    const auto manifest = read_manifest(*opened, nullptr);
    MUST(manifest.ok());
    size_t files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(target)) {
      files += entry.is_regular_file() ? 1 : 0;
    }
    MUST(files == manifest->files.size() + 1 || files == manifest->files.size() + 2);  // a signature too
  } else {
    const Failure& failure = unpacked.failure();
    MUST(!failure.where.empty() && !failure.found.empty() && !failure.fix.empty());
  }
  folder.clear();
  return 0;
}
