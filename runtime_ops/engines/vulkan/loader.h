// Vulkan's functions, from the system's library. It is opened when a bundle needs it: nothing links it.
#pragma once

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>

#include <string>

#include "session/result.h"

namespace zoexport {
namespace vulkan {

#define ZO_VULKAN_INSTANCE_FUNCTIONS(X)     \
  X(DestroyInstance)                        \
  X(EnumeratePhysicalDevices)               \
  X(GetPhysicalDeviceProperties)            \
  X(GetPhysicalDeviceFeatures2)             \
  X(GetPhysicalDeviceMemoryProperties)      \
  X(GetPhysicalDeviceQueueFamilyProperties) \
  X(CreateDevice)                           \
  X(GetDeviceProcAddr)

#define ZO_VULKAN_DEVICE_FUNCTIONS(X) \
  X(DestroyDevice)                    \
  X(GetDeviceQueue)                   \
  X(CreateBuffer)                     \
  X(DestroyBuffer)                    \
  X(GetBufferMemoryRequirements)      \
  X(AllocateMemory)                   \
  X(FreeMemory)                       \
  X(BindBufferMemory)                 \
  X(MapMemory)                        \
  X(CreateShaderModule)               \
  X(DestroyShaderModule)              \
  X(CreateDescriptorSetLayout)        \
  X(DestroyDescriptorSetLayout)       \
  X(CreatePipelineLayout)             \
  X(DestroyPipelineLayout)            \
  X(CreatePipelineCache)              \
  X(GetPipelineCacheData)             \
  X(DestroyPipelineCache)             \
  X(CreateComputePipelines)           \
  X(DestroyPipeline)                  \
  X(CreateDescriptorPool)             \
  X(DestroyDescriptorPool)            \
  X(AllocateDescriptorSets)           \
  X(UpdateDescriptorSets)             \
  X(CreateCommandPool)                \
  X(DestroyCommandPool)               \
  X(AllocateCommandBuffers)           \
  X(FreeCommandBuffers)               \
  X(BeginCommandBuffer)               \
  X(EndCommandBuffer)                 \
  X(CmdBindPipeline)                  \
  X(CmdBindDescriptorSets)            \
  X(CmdPushConstants)                 \
  X(CmdDispatchBase)                  \
  X(CmdPipelineBarrier)               \
  X(CreateQueryPool)                  \
  X(DestroyQueryPool)                 \
  X(GetQueryPoolResults)              \
  X(CmdResetQueryPool)                \
  X(CmdWriteTimestamp)                \
  X(CreateFence)                      \
  X(DestroyFence)                     \
  X(ResetFences)                      \
  X(WaitForFences)                    \
  X(QueueSubmit)

struct InstanceFunctions {
#define ZO_VULKAN_DECLARE(name) PFN_vk##name name = nullptr;
  ZO_VULKAN_INSTANCE_FUNCTIONS(ZO_VULKAN_DECLARE)
};

struct DeviceFunctions {
  ZO_VULKAN_DEVICE_FUNCTIONS(ZO_VULKAN_DECLARE)
#undef ZO_VULKAN_DECLARE
};

// An instance of Vulkan 1.1, without extensions.
class Instance {
 public:
  static Result<Instance> open();
  Instance(Instance&& other) noexcept;
  Instance& operator=(Instance&&) = delete;
  ~Instance();

  VkInstance handle() const { return handle_; }
  const InstanceFunctions& functions() const { return functions_; }
  // Leaves it as it is: a device of it may still run.
  void abandon() { handle_ = VK_NULL_HANDLE; }

 private:
  Instance() = default;
  VkInstance handle_ = VK_NULL_HANDLE;
  InstanceFunctions functions_;
};

// A call that failed. `goes_on`: what it belongs to can be used further, where memory is all that it lacked.
Failure failed_call(const std::string& where, const std::string& doing, VkResult result, bool goes_on);

}  // namespace vulkan
}  // namespace zoexport
