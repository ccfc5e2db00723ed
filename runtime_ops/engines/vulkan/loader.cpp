#include "engines/vulkan/loader.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace zoexport {
namespace vulkan {
namespace {

Failure missing(const std::string& found) {
  return {ZO_ENGINE_ERROR, "Vulkan", found, "a library and a driver of Vulkan 1.1 or newer",
          "Install the GPU's driver (on Debian: mesa-vulkan-drivers), or compile the bundle for android-cpu or host."};
}

// The library of the environment's ZOEXPORT_VULKAN_LIBRARY, else the system's. Never closed: drivers keep threads and handlers
// of their own.
Result<PFN_vkGetInstanceProcAddr> entry() {
#if defined(__APPLE__)
  std::vector<std::string> names = {"libvulkan.1.dylib", "libMoltenVK.dylib"};
#else
  std::vector<std::string> names = {"libvulkan.so.1", "libvulkan.so"};
#endif
  const char* chosen = std::getenv("ZOEXPORT_VULKAN_LIBRARY");
  const bool chooses = chosen != nullptr && *chosen != '\0';
  if (chooses) {
    names = {chosen};
  }
  for (const std::string& name : names) {
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    void* found = library == nullptr ? nullptr : dlsym(library, "vkGetInstanceProcAddr");
    if (found != nullptr) {
      return reinterpret_cast<PFN_vkGetInstanceProcAddr>(found);
    }
  }
  return missing(chooses ? "no library of Vulkan at " + names[0] + ", as ZOEXPORT_VULKAN_LIBRARY says"
                         : "no library " + names[0]);
}

// Vulkan's word for a result.
const char* result_text(VkResult result) {
  switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
      return "out of host memory";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
      return "out of device memory";
    case VK_ERROR_INITIALIZATION_FAILED:
      return "initialization failed";
    case VK_ERROR_DEVICE_LOST:
      return "the device was lost";
    case VK_ERROR_MEMORY_MAP_FAILED:
      return "memory cannot be mapped";
    case VK_ERROR_INCOMPATIBLE_DRIVER:
      return "an incompatible driver";
    case VK_ERROR_TOO_MANY_OBJECTS:
      return "too many objects";
    case VK_TIMEOUT:
      return "no end within the time allowed";
    default:
      return "an error that Vulkan does not name";
  }
}

bool is_of_memory(VkResult result) {
  return result == VK_ERROR_OUT_OF_DEVICE_MEMORY || result == VK_ERROR_OUT_OF_HOST_MEMORY;
}

}  // namespace

Instance::Instance(Instance&& other) noexcept
    : handle_(std::exchange(other.handle_, VkInstance(VK_NULL_HANDLE))), functions_(other.functions_) {}

Instance::~Instance() {
  if (handle_ != VK_NULL_HANDLE) {
    functions_.DestroyInstance(handle_, nullptr);
  }
}

Result<Instance> Instance::open() {
  ZO_ASSIGN(get, entry());
  const auto version = reinterpret_cast<PFN_vkEnumerateInstanceVersion>(get(nullptr, "vkEnumerateInstanceVersion"));
  const auto create = reinterpret_cast<PFN_vkCreateInstance>(get(nullptr, "vkCreateInstance"));
  uint32_t has = VK_API_VERSION_1_0;
  if (create == nullptr || version == nullptr || version(&has) != VK_SUCCESS || has < VK_API_VERSION_1_1) {
    return missing("a library of Vulkan 1.0");
  }
  VkApplicationInfo application{};
  application.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
  application.pEngineName = "zoexport";
  application.apiVersion = VK_API_VERSION_1_1;
  VkInstanceCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
  info.pApplicationInfo = &application;
  Instance instance;
  const VkResult result = create(&info, nullptr, &instance.handle_);
  if (result != VK_SUCCESS) {
    instance.handle_ = VK_NULL_HANDLE;
    return is_of_memory(result) ? failed_call("Vulkan", "while opening it", result, true)
                                : missing(std::string("no driver: ") + result_text(result));
  }
  InstanceFunctions& functions = instance.functions_;
#define ZO_VULKAN_GET(name) functions.name = reinterpret_cast<PFN_vk##name>(get(instance.handle_, "vk" #name));
  ZO_VULKAN_INSTANCE_FUNCTIONS(ZO_VULKAN_GET)
#undef ZO_VULKAN_GET
  return instance;
}

Failure failed_call(const std::string& where, const std::string& doing, VkResult result, bool goes_on) {
  return {ZO_ENGINE_ERROR, where, std::string(result_text(result)) + ", " + doing, "a device that carries it out",
          goes_on && is_of_memory(result)
              ? "Close other apps, or choose a smaller batch or max_length; what was trained is kept."
              : "Open the session again, or open it with the engine executorch; what was trained is kept."};
}

}  // namespace vulkan
}  // namespace zoexport
