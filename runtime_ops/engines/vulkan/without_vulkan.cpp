// A library without the Vulkan engine: built where no compiler of shaders was, or for systems without Vulkan.
#include "engines/engine.h"
#include "session/storage/files.h"

namespace zoexport {

Result<std::unique_ptr<Engine>> make_vulkan_engine(const Manifest& manifest, const BundleFiles& files) {
  return Failure{ZO_ENGINE_ERROR, join(files.path(), "manifest.json"),
                 "the engine vulkan (target " + manifest.target + "), which this library was built without",
                 "a library that has it",
                 "Build it where glslangValidator and Vulkan's headers are (on Debian: glslang-tools, libvulkan-dev)."};
}

}  // namespace zoexport
