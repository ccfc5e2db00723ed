// A program file of the Vulkan engine: one that is accepted keeps to its buffers.
#include "../cpp/vulkan_files.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  zoexport::ProgramSpec spec = vulkan_files::spec();
  const auto file = vulkan_files::read(fuzz::text(data, size), spec);
  if (file.ok()) {
    MUST(vulkan_files::is_within(*file));
  } else {
    MUST(!file.failure().where.empty() && !file.failure().found.empty() && !file.failure().fix.empty());
  }
  return 0;
}
