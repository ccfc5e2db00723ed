// A device of Vulkan, and what this engine makes on it: buffers in the host's reach, pipelines, recorded commands.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engines/vulkan/loader.h"
#include "engines/vulkan/program_file.h"
#include "engines/vulkan/submissions.h"

namespace zoexport {
namespace vulkan {

// What a device is, and why it cannot run programs; empty where it can.
struct DeviceInfo {
  std::string name;
  std::string kind;  // "integrated", "discrete", "virtual", "cpu" or "other"
  std::string version;
  std::string problem;
  std::string lacks;  // of what some programs need; empty where it runs all
};

// The devices of this system, in Vulkan's order.
Result<std::vector<DeviceInfo>> list_devices();

class Device {
 public:
  // A buffer that shaders and the host both see; the host's writes are seen by what is submitted after them. It goes before
  // its device.
  struct Buffer {
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer();

    Device* device = nullptr;
    VkBuffer handle = VK_NULL_HANDLE;
    VkDeviceMemory memory = VK_NULL_HANDLE;
    uint8_t* data = nullptr;
    uint64_t bytes = 0;      // that shaders see
    uint64_t allocated = 0;  // that the device keeps
  };

  // Commands that were recorded, in parts that are submitted one after another; with the device's time at the begin of a
  // part and after each piece of a dispatch where it is asked for.
  struct Recording {
    std::vector<VkCommandBuffer> parts;
    VkQueryPool stamps = VK_NULL_HANDLE;
    std::vector<uint32_t> stamped;  // the number of the dispatch that each ends; kBegin
    uint32_t dispatches = 0;
  };
  static constexpr uint32_t kBegin = UINT32_MAX;

  // The device of the environment's ZOEXPORT_VULKAN_DEVICE, a number or a part of a name; else the one that is likely the
  // fastest. What its driver makes of shaders is kept in the folder `cache`, or nowhere where it is empty. `timed`: what is
  // recorded asks for the device's time, where it has one.
  static Result<std::unique_ptr<Device>> open(const std::string& cache = "", bool timed = false);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  const std::string& name() const { return name_; }
  // Whether shaders may read and write fp16 in its buffers.
  bool has_half_storage() const { return has_half_storage_; }
  // What its buffers take.
  uint64_t bytes() const { return bytes_; }
  // Whether it can run anything: a device that was lost, or may still be at work, stays so.
  Status check() const;

  // At least 16 bytes, of undefined content.
  Result<Buffer> make_buffer(uint64_t bytes);
  // What shaders are given, by window: the pool, the window and the code of row programs.
  Result<std::vector<VkDescriptorSet>> bind(const Buffer& pool, const std::vector<Buffer>& windows, const Buffer& code);
  // Records dispatches, each after those whose results it reads or overwrites; `sets` by window. A part is not to take longer
  // than `most_seconds` (submissions.h).
  Result<Recording> record(const std::vector<Dispatch>& dispatches, const std::vector<VkDescriptorSet>& sets,
                           double most_seconds = kMostSubmission);
  // Runs what was recorded, and waits for its end.
  Status submit(const Recording& recording);
  // The seconds of each dispatch when it was submitted last, from the end of those before it; none where they are not timed.
  Result<std::vector<double>> seconds(const Recording& recording);

 private:
  using PipelineKey = std::tuple<Shader, bool, std::vector<uint32_t>>;  // the second: has_halves

  explicit Device(Instance instance) : instance_(std::move(instance)) {}
  Status create(VkPhysicalDevice physical, bool timed);
  Status create_objects();
  Status fill(Recording& recording, const std::vector<Dispatch>& dispatches, const std::vector<VkDescriptorSet>& sets,
              double most_seconds);
  Result<VkQueryPool> make_stamps(uint32_t count);
  Status begin_commands(Recording& recording);
  void stamp(Recording& recording, uint32_t ended);
  VkResult open_pipeline_cache();
  void keep_pipeline_cache();
  Result<uint32_t> memory_type(uint32_t allowed) const;
  Result<VkPipeline> pipeline(const Dispatch& dispatch);
  Failure failed(const std::string& doing, VkResult result);
  // Whether a submission may still use what was made: then nothing of it is given back, nor waited for, as a driver may wait
  // for ever. A lost device runs nothing.
  bool may_run() const { return end_ != VK_SUCCESS && end_ != VK_ERROR_DEVICE_LOST; }

  Instance instance_;
  DeviceFunctions vk_;
  std::string name_;
  VkPhysicalDeviceMemoryProperties memory_{};
  bool has_half_storage_ = false;
  uint32_t family_ = 0;
  uint32_t stamp_bits_ = 0;       // of the device's time that count; 0: it has none, or nobody asks
  double stamp_nanoseconds_ = 0;  // of its unit
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
  std::vector<VkQueryPool> stamps_;
  uint64_t bytes_ = 0;
  std::map<PipelineKey, VkPipeline> pipelines_;
  VkResult end_ = VK_SUCCESS;  // why nothing more can be run
};

}  // namespace vulkan
}  // namespace zoexport
