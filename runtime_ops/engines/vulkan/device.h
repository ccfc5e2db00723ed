// A device of Vulkan, and what this engine makes on it: buffers in the host's reach, pipelines, recorded commands.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engines/vulkan/loader.h"
#include "engines/vulkan/program_file.h"

namespace zoexport {
namespace vulkan {

// What a device is, and why it cannot run programs; empty where it can.
struct DeviceInfo {
  std::string name;
  std::string kind;  // "integrated", "discrete", "virtual", "cpu" or "other"
  std::string version;
  std::string problem;
};

// The devices of this system, in Vulkan's order.
Result<std::vector<DeviceInfo>> list_devices();

class Device {
 public:
  // A buffer that shaders and the host both see; the host's writes are seen by what is submitted after them.
  struct Buffer {
    VkBuffer handle = VK_NULL_HANDLE;
    VkDeviceMemory memory = VK_NULL_HANDLE;
    uint8_t* data = nullptr;
    uint64_t bytes = 0;
  };

  // The device of the environment's ZOEXPORT_VULKAN_DEVICE, a number or a part of a name; else the one that is likely the
  // fastest. What its driver makes of shaders is kept in the folder `cache`, or nowhere where it is empty.
  static Result<std::unique_ptr<Device>> open(const std::string& cache = "");
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  const std::string& name() const { return name_; }

  // At least 16 bytes, of undefined content; it lives as long as the device.
  Result<Buffer> make_buffer(uint64_t bytes);
  // What shaders are given: the pool, a window and the code of row programs.
  Result<VkDescriptorSet> bind(const Buffer& pool, const Buffer& window, const Buffer& code);
  // Records dispatches, each after those whose results it reads or overwrites; `sets` by window.
  Result<VkCommandBuffer> record(const std::vector<Dispatch>& dispatches, const std::vector<VkDescriptorSet>& sets);
  // Runs what was recorded, and waits for its end.
  Status submit(VkCommandBuffer commands);

 private:
  using PipelineKey = std::pair<Shader, std::vector<uint32_t>>;

  explicit Device(Instance instance) : instance_(std::move(instance)) {}
  Status create(VkPhysicalDevice physical);
  Status create_objects();
  VkResult open_pipeline_cache();
  void keep_pipeline_cache();
  Result<uint32_t> memory_type(uint32_t allowed) const;
  Result<VkPipeline> pipeline(const Dispatch& dispatch);
  Failure failed(const std::string& doing, VkResult result) const;

  Instance instance_;
  DeviceFunctions vk_;
  std::string name_;
  VkPhysicalDeviceMemoryProperties memory_{};
  uint32_t family_ = 0;
  VkDevice device_ = VK_NULL_HANDLE;
  VkQueue queue_ = VK_NULL_HANDLE;
  VkDescriptorSetLayout set_layout_ = VK_NULL_HANDLE;
  VkPipelineLayout pipeline_layout_ = VK_NULL_HANDLE;
  VkPipelineCache pipeline_cache_ = VK_NULL_HANDLE;
  std::string cache_;        // the folder of the file that it is kept in; empty: none
  std::string cache_file_;   // its name, of the driver and this device
  bool cache_grew_ = false;  // since it was opened
  VkDescriptorPool descriptors_ = VK_NULL_HANDLE;
  VkCommandPool commands_ = VK_NULL_HANDLE;
  VkFence fence_ = VK_NULL_HANDLE;
  std::vector<Buffer> buffers_;
  std::map<PipelineKey, VkPipeline> pipelines_;
  VkResult lost_ = VK_SUCCESS;  // why nothing more can be run
};

}  // namespace vulkan
}  // namespace zoexport
