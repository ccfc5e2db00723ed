// A library without the Vulkan engine: built where no compiler of shaders was, or for systems without Vulkan.
#include "engines/engine.h"

namespace zoexport {

namespace {

Failure built_without(const std::string& where) {
  return {ZO_ENGINE_ERROR, where, "a library that was built without the engine vulkan", "one that has it",
          "Install glslangValidator and Vulkan's headers (on Debian: glslang-tools, libvulkan-dev), and build zoexport "
          "again."};
}

}  // namespace

Result<std::unique_ptr<Engine>> make_vulkan_engine(const Manifest&, const BundleFiles& files, const std::string&,
                                                   bool) {
  return built_without("bundle " + files.path());
}

Result<std::vector<VulkanDevice>> list_vulkan_devices() { return built_without("Vulkan"); }

}  // namespace zoexport
