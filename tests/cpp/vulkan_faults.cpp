// Stands before Vulkan's library (ZOEXPORT_VULKAN_LIBRARY names it), passes calls on, and has one of them fail
// (tests/support/vulkan.py drives it).
//
//   ZOEXPORT_TEST_VULKAN_FAULT  such as vkQueueSubmit:12:VK_ERROR_DEVICE_LOST: the process's twelfth call of that name gives
//                               this result, and is not carried out
//   ZOEXPORT_TEST_VULKAN_FEATURES  none: devices say that they have no feature beyond Vulkan 1.1
//   ZOEXPORT_TEST_VULKAN_CALLS  a file that gets a line "name count" for each name that can fail, when an instance goes
//
// It is as hard as a driver may be, and ends the process where that would hang or read what is gone: a failing call leaves
// garbage where its result goes; a lost device stays lost, and is never idle; nothing that a submission may still use can be
// given back; and a device goes after all that was made on it.
#include <dlfcn.h>

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <tuple>

namespace {

// Calls that can fail, and what takes back what they made.
#define ZO_MADE(X)                                         \
  X(CreateInstance, DestroyInstance)                       \
  X(CreateDevice, DestroyDevice)                           \
  X(CreateBuffer, DestroyBuffer)                           \
  X(AllocateMemory, FreeMemory)                            \
  X(CreateShaderModule, DestroyShaderModule)               \
  X(CreateDescriptorSetLayout, DestroyDescriptorSetLayout) \
  X(CreatePipelineLayout, DestroyPipelineLayout)           \
  X(CreatePipelineCache, DestroyPipelineCache)             \
  X(CreateComputePipelines, DestroyPipeline)               \
  X(CreateDescriptorPool, DestroyDescriptorPool)           \
  X(CreateCommandPool, DestroyCommandPool)                 \
  X(CreateQueryPool, DestroyQueryPool)                     \
  X(CreateFence, DestroyFence)
// Calls that can fail, and make nothing that is taken back alone.
#define ZO_OTHERS(X)        \
  X(BindBufferMemory)       \
  X(MapMemory)              \
  X(AllocateDescriptorSets) \
  X(AllocateCommandBuffers) \
  X(BeginCommandBuffer)     \
  X(EndCommandBuffer)       \
  X(GetPipelineCacheData)   \
  X(ResetFences)            \
  X(QueueSubmit)            \
  X(WaitForFences)          \
  X(DeviceWaitIdle)         \
  X(GetQueryPoolResults)

enum Call {
#define ZO_NAME(name, ...) k##name,
  ZO_MADE(ZO_NAME) ZO_OTHERS(ZO_NAME)
#undef ZO_NAME
      kCalls
};
const char* const kNames[] = {
#define ZO_NAME(name, ...) "vk" #name,
    ZO_MADE(ZO_NAME) ZO_OTHERS(ZO_NAME)
#undef ZO_NAME
};

struct Named {
  const char* name;
  VkResult result;
};
const Named kResults[] = {
    {"VK_TIMEOUT", VK_TIMEOUT},
    {"VK_NOT_READY", VK_NOT_READY},
    {"VK_ERROR_OUT_OF_HOST_MEMORY", VK_ERROR_OUT_OF_HOST_MEMORY},
    {"VK_ERROR_OUT_OF_DEVICE_MEMORY", VK_ERROR_OUT_OF_DEVICE_MEMORY},
    {"VK_ERROR_INITIALIZATION_FAILED", VK_ERROR_INITIALIZATION_FAILED},
    {"VK_ERROR_DEVICE_LOST", VK_ERROR_DEVICE_LOST},
    {"VK_ERROR_MEMORY_MAP_FAILED", VK_ERROR_MEMORY_MAP_FAILED},
    {"VK_ERROR_UNKNOWN", VK_ERROR_UNKNOWN},
};

[[noreturn]] void end(const std::string& what) {
  std::fprintf(stderr, "vulkan_faults: %s\n", what.c_str());
  std::_Exit(99);
}

struct Plan {
  int call = -1;
  long number = 0;
  VkResult result = VK_SUCCESS;

  Plan() {
    const char* given = std::getenv("ZOEXPORT_TEST_VULKAN_FAULT");
    const std::string text = given == nullptr ? "" : given;
    if (text.empty()) {
      return;
    }
    const size_t first = text.find(':'), second = text.rfind(':');
    for (int name = 0; name < kCalls; ++name) {
      call = text.substr(0, first) == kNames[name] ? name : call;
    }
    for (const Named& one : kResults) {
      result = text.substr(second + 1) == one.name ? one.result : result;
    }
    number = first < second ? std::strtol(text.c_str() + first + 1, nullptr, 10) : 0;
    if (call < 0 || number < 1 || result == VK_SUCCESS) {
      end("no fault: " + text);
    }
  }
};
const Plan& plan() {
  static const Plan made;
  return made;
}

// Of the process, which calls from one thread at a time.
long counts[kCalls];
// Of the device that was opened last: how many of each kind there are, and whether it is lost, or may still run.
long living[kCalls];
bool is_lost = false, is_running = false;

// Where a call that makes something puts a handle or an address.
template <typename Handle>
void spoil(Handle** made) {
  std::memset(made, 0xbd, sizeof(*made));
}
void spoil(...) {}

void write_counts() {
  const char* path = std::getenv("ZOEXPORT_TEST_VULKAN_CALLS");
  if (std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "w")) {
    for (int call = 0; call < kCalls; ++call) {
      std::fprintf(file, "%s %ld\n", kNames[call], counts[call]);
    }
    std::fclose(file);
  }
}

void must_not_run(const char* name) {
  if (is_running) {
    end(std::string(name) + " while a submission may still run");
  }
}

template <Call call, typename Function>
struct Failing;
template <Call call, typename... Given>
struct Failing<call, VkResult(VKAPI_PTR*)(Given...)> {
  static inline VkResult(VKAPI_PTR* real)(Given...) = nullptr;

  static VKAPI_ATTR VkResult VKAPI_CALL stand(Given... given) {
    const bool meant = ++counts[call] == plan().number && plan().call == call;
    const bool runs_device = call == kQueueSubmit || call == kWaitForFences || call == kGetQueryPoolResults;
    if (call == kCreateDevice) {
      std::memset(living, 0, sizeof(living));
      is_lost = is_running = false;
    } else if (call != kCreateInstance) {
      must_not_run(kNames[call]);
    }
    if (call == kDeviceWaitIdle && is_lost) {
      end("a lost device may never be idle");
    }
    if (!meant && !(is_lost && runs_device)) {
      const VkResult result = real(given...);
      living[call] += result == VK_SUCCESS ? 1 : 0;
      return result;
    }
    const VkResult result = meant ? plan().result : VK_ERROR_DEVICE_LOST;
    is_lost = result == VK_ERROR_DEVICE_LOST;
    if (call == kWaitForFences && meant) {
      if (is_lost) {
        (void)real(given...);  // what has been lost runs no more
      } else {
        is_running = true;
      }
    }
    spoil(std::get<sizeof...(Given) - 1>(std::tie(given...)));
    return result;
  }
};

template <Call call, typename Function>
struct Taking;
template <Call call, typename... Given>
struct Taking<call, void(VKAPI_PTR*)(Given...)> {
  static inline void(VKAPI_PTR* real)(Given...) = nullptr;

  static VKAPI_ATTR void VKAPI_CALL stand(Given... given) {
    must_not_run("giving back what a call made");
    if (call == kCreateDevice) {
      for (int kind = kCreateDevice + 1; kind <= kCreateFence; ++kind) {
        if (living[kind] != 0) {
          end("a device goes before what " + std::string(kNames[kind]) + " made, " + std::to_string(living[kind]));
        }
      }
    }
    if (call == kCreateInstance) {
      write_counts();
    }
    // Before the last, which is the allocator.
    living[call] -= std::get<sizeof...(Given) - 2>(std::tie(given...)) == VK_NULL_HANDLE ? 0 : 1;
    real(given...);
  }
};

// Of the features that the engine asks for.
PFN_vkGetPhysicalDeviceFeatures2 real_features = nullptr;
VKAPI_ATTR void VKAPI_CALL no_features(VkPhysicalDevice device, VkPhysicalDeviceFeatures2* features) {
  real_features(device, features);
  for (auto* next = static_cast<VkBaseOutStructure*>(features->pNext); next != nullptr; next = next->pNext) {
    if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES) {
      reinterpret_cast<VkPhysicalDevice16BitStorageFeatures*>(next)->storageBuffer16BitAccess = VK_FALSE;
    }
  }
}

PFN_vkGetDeviceProcAddr device_functions = nullptr;
VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL of_device(VkDevice device, const char* name);

template <typename Stand, typename Function>
PFN_vkVoidFunction before(Function real) {
  Stand::real = real;
  return reinterpret_cast<PFN_vkVoidFunction>(&Stand::stand);
}

// What stands before a function, or itself.
PFN_vkVoidFunction stand(const std::string& name, PFN_vkVoidFunction real) {
  if (real == nullptr) {
    return nullptr;
  }
#define ZO_FAILING(call, ...)                                                            \
  if (name == "vk" #call) {                                                              \
    return before<Failing<k##call, PFN_vk##call>>(reinterpret_cast<PFN_vk##call>(real)); \
  }
#define ZO_TAKING(call, taking)                                                             \
  if (name == "vk" #taking) {                                                               \
    return before<Taking<k##call, PFN_vk##taking>>(reinterpret_cast<PFN_vk##taking>(real)); \
  }
  ZO_MADE(ZO_FAILING)
  ZO_OTHERS(ZO_FAILING)
  ZO_MADE(ZO_TAKING)
#undef ZO_FAILING
#undef ZO_TAKING
  if (name == "vkGetPhysicalDeviceFeatures2" && std::getenv("ZOEXPORT_TEST_VULKAN_FEATURES") != nullptr) {
    real_features = reinterpret_cast<PFN_vkGetPhysicalDeviceFeatures2>(real);
    return reinterpret_cast<PFN_vkVoidFunction>(&no_features);
  }
  if (name == "vkGetDeviceProcAddr") {
    device_functions = reinterpret_cast<PFN_vkGetDeviceProcAddr>(real);
    return reinterpret_cast<PFN_vkVoidFunction>(&of_device);
  }
  return real;
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL of_device(VkDevice device, const char* name) {
  return stand(name, device_functions(device, name));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL
vkGetInstanceProcAddr(VkInstance instance, const char* name) {
  static const auto real = [] {
    void* library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
    return library == nullptr ? nullptr
                              : reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(library, "vkGetInstanceProcAddr"));
  }();
  return real == nullptr ? nullptr : stand(name, real(instance, name));
}
