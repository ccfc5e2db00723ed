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

// Properties of a device. `problem` is why it cannot run programs, empty if it can.
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

  // Recorded commands, in parts that are submitted one after another. If timed, they write the device's time at the
  // begin of a part and after each piece of a dispatch.
  struct Recording {
    std::vector<VkCommandBuffer> parts;
    VkQueryPool stamps = VK_NULL_HANDLE;
    std::vector<uint32_t> stamped;  // the number of the dispatch that each ends; kBegin
    uint32_t dispatches = 0;
  };
  static constexpr uint32_t kBegin = UINT32_MAX;

  // Open the device that the environment's ZOEXPORT_VULKAN_DEVICE selects, a number or a part of a name; else the one
  // that is likely the fastest. The driver's compiled shaders are kept in the folder `cache`, or nowhere if it is
  // empty. `timed`: recordings contain the device's time, if it has a clock.
  static Result<std::unique_ptr<Device>> open(const std::string& cache = "", bool timed = false);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  const std::string& name() const { return name_; }
  // True if shaders may read and write fp16 in its buffers.
  bool has_half_storage() const { return has_half_storage_; }
  // Bytes of its buffers.
  uint64_t bytes() const { return bytes_; }
  // Return an error if it cannot run anything: a device that was lost, or may still be at work, stays so.
  Status check() const;

  // At least 16 bytes, of undefined content.
  Result<Buffer> make_buffer(uint64_t bytes);
  // Return what shaders bind, by window: the pool, the window and the code of row programs.
  Result<std::vector<VkDescriptorSet>> bind(const Buffer& pool, const std::vector<Buffer>& windows, const Buffer& code);
  // Records dispatches, each after those whose results it reads or overwrites; `sets` by window. A part is not to take longer
  // than `most_seconds` (submissions.h).
  Result<Recording> record(const std::vector<Dispatch>& dispatches, const std::vector<VkDescriptorSet>& sets,
                           double most_seconds = kMostSubmission);
  // Runs what was recorded, and waits for its end.
  Status submit(const Recording& recording);
  // Seconds of each dispatch in its last submission, from the end of the previous dispatches; empty if not timed.
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
  // True if a submission may still use the objects: then none is freed or waited for, as a driver may wait for ever. A
  // lost device runs nothing.
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
