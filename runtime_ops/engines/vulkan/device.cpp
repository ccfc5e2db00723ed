#include "engines/vulkan/device.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>

#include "engines/vulkan/row_module.h"
#include "engines/vulkan/shaders.h"
#include "session/storage/files.h"
#include "session/storage/sha256.h"

namespace zoexport {
namespace vulkan {
namespace {

// Requirements of shaders/*.comp; every device with Vulkan meets the others.
constexpr uint32_t kThreads = 128, kSharedBytes = 16384;
constexpr uint32_t kBindings = 3;
constexpr size_t kHashDigits = 64;
constexpr size_t kMostCache = size_t{64} << 20;
// A submission that takes longer is given up: a driver may wait for ever for a device that hangs.
constexpr uint64_t kMostNanoseconds = uint64_t{600} * 1000000000;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

const char* kind_text(VkPhysicalDeviceType type) {
  switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
      return "integrated";
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
      return "discrete";
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
      return "virtual";
    case VK_PHYSICAL_DEVICE_TYPE_CPU:
      return "cpu";
    default:
      return "other";
  }
}

// The least is taken.
int rank(const std::string& kind) {
  const char* const order[] = {"discrete", "integrated", "virtual", "other", "cpu"};
  return static_cast<int>(std::find(std::begin(order), std::end(order), kind) - std::begin(order));
}

std::vector<VkPhysicalDevice> physical_devices(const Instance& instance) {
  uint32_t count = 0;
  const auto enumerate = instance.functions().EnumeratePhysicalDevices;
  if (enumerate(instance.handle(), &count, nullptr) != VK_SUCCESS) {
    return {};
  }
  std::vector<VkPhysicalDevice> devices(count);
  if (enumerate(instance.handle(), &count, devices.data()) < VK_SUCCESS) {
    return {};
  }
  devices.resize(count);
  return devices;
}

// The first family of queues that compute.
struct Family {
  uint32_t number = 0;
  VkQueueFamilyProperties properties;
};
std::optional<Family> compute_family(const Instance& instance, VkPhysicalDevice physical) {
  uint32_t count = 0;
  instance.functions().GetPhysicalDeviceQueueFamilyProperties(physical, &count, nullptr);
  std::vector<VkQueueFamilyProperties> properties(count);
  instance.functions().GetPhysicalDeviceQueueFamilyProperties(physical, &count, properties.data());
  for (uint32_t family = 0; family < count; ++family) {
    if ((properties[family].queueFlags & VK_QUEUE_COMPUTE_BIT) != 0) {
      return Family{family, properties[family]};
    }
  }
  return std::nullopt;
}

// Return whether shaders may read and write fp16 in buffers. Not for devices below Vulkan 1.1.
bool stores_halves(const Instance& instance, VkPhysicalDevice physical) {
  VkPhysicalDevice16BitStorageFeatures storage{};
  storage.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES;
  VkPhysicalDeviceFeatures2 features{};
  features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  features.pNext = &storage;
  instance.functions().GetPhysicalDeviceFeatures2(physical, &features);
  return storage.storageBuffer16BitAccess == VK_TRUE;
}

DeviceInfo describe(const Instance& instance, VkPhysicalDevice physical) {
  VkPhysicalDeviceProperties properties;
  instance.functions().GetPhysicalDeviceProperties(physical, &properties);
  const VkPhysicalDeviceLimits& limits = properties.limits;
  DeviceInfo info;
  info.name = properties.deviceName;
  info.kind = kind_text(properties.deviceType);
  info.version = std::to_string(VK_VERSION_MAJOR(properties.apiVersion)) + "." +
                 std::to_string(VK_VERSION_MINOR(properties.apiVersion));
  if (properties.apiVersion < VK_API_VERSION_1_1) {
    info.problem = "Vulkan " + info.version + "; 1.1 is needed";
  } else if (!compute_family(instance, physical)) {
    info.problem = "no queue that computes";
  } else if (limits.maxComputeWorkGroupInvocations < kThreads || limits.maxComputeWorkGroupSize[0] < kThreads) {
    info.problem = "workgroups of " + std::to_string(limits.maxComputeWorkGroupInvocations) + " threads; " +
                   std::to_string(kThreads) + " are needed";
  } else if (limits.maxComputeSharedMemorySize < kSharedBytes) {
    info.problem = std::to_string(limits.maxComputeSharedMemorySize) + " bytes of shared memory; " +
                   std::to_string(kSharedBytes) + " are needed";
  } else if (limits.maxStorageBufferRange < kMostBytes) {
    info.problem = "buffers of " + std::to_string(limits.maxStorageBufferRange) + " bytes; " +
                   std::to_string(kMostBytes) + " are needed";
  } else if (!stores_halves(instance, physical)) {
    info.lacks = "fp16 storage, which bundles with compute=fp16 need";
  }
  return info;
}

std::vector<DeviceInfo> describe_all(const Instance& instance, const std::vector<VkPhysicalDevice>& physical) {
  std::vector<DeviceInfo> infos(physical.size());
  std::transform(physical.begin(), physical.end(), infos.begin(),
                 [&](VkPhysicalDevice one) { return describe(instance, one); });
  return infos;
}

// A result; what a failing call was to make is nothing then.
template <typename Handle>
VkResult made(VkResult result, Handle& handle) {
  handle = result == VK_SUCCESS ? handle : VK_NULL_HANDLE;
  return result;
}

Failure none(const std::string& found, const std::string& expected) {
  return {ZO_ENGINE_ERROR, "Vulkan", found, expected,
          "See 'zoexport doctor' for the devices; ZOEXPORT_VULKAN_DEVICE is a number or a part of a name."};
}

}  // namespace

Result<std::vector<DeviceInfo>> list_devices() {
  ZO_ASSIGN(instance, Instance::open());
  return describe_all(instance, physical_devices(instance));
}

Result<std::unique_ptr<Device>> Device::open(const std::string& cache, bool timed) {
  ZO_ASSIGN(instance, Instance::open());
  const std::vector<VkPhysicalDevice> physical = physical_devices(instance);
  const std::vector<DeviceInfo> infos = describe_all(instance, physical);
  const char* variable = std::getenv("ZOEXPORT_VULKAN_DEVICE");
  const std::string wanted = variable == nullptr ? "" : lower(variable);
  size_t chosen = physical.size();
  for (size_t i = 0; i < physical.size(); ++i) {
    const bool is_meant = wanted.empty()
                              ? infos[i].problem.empty()
                              : wanted == std::to_string(i) || lower(infos[i].name).find(wanted) != std::string::npos;
    if (is_meant && (chosen == physical.size() || (wanted.empty() && rank(infos[i].kind) < rank(infos[chosen].kind)))) {
      chosen = i;
    }
  }
  if (chosen == physical.size()) {
    std::string names;
    for (const DeviceInfo& info : infos) {
      names += (names.empty() ? "" : ", ") + info.name + (info.problem.empty() ? "" : " (" + info.problem + ")");
    }
    return none(wanted.empty() ? "no device that runs programs: " + (names.empty() ? "there is none" : names)
                               : "no device '" + std::string(variable) + "'",
                wanted.empty() ? "one of Vulkan 1.1 that computes" : "one of " + names);
  }
  if (!infos[chosen].problem.empty()) {
    return none(infos[chosen].name + " with " + infos[chosen].problem, "a device without such a lack");
  }
  std::unique_ptr<Device> device(new Device(std::move(instance)));
  device->name_ = infos[chosen].name;
  device->cache_ = cache;
  ZO_TRY(device->create(physical[chosen], timed));
  return device;
}

Failure Device::failed(const std::string& doing, VkResult result) {
  if (result == VK_ERROR_DEVICE_LOST) {
    end_ = result;
  }
  return failed_call("Vulkan device " + name_, doing, result, end_ == VK_SUCCESS);
}

Status Device::check() const {
  return end_ == VK_SUCCESS ? Status() : failed_call("Vulkan device " + name_, "in an earlier call", end_, false);
}

Status Device::create(VkPhysicalDevice physical, bool timed) {
  const InstanceFunctions& instance = instance_.functions();
  instance.GetPhysicalDeviceMemoryProperties(physical, &memory_);
  const Family family = *compute_family(instance_, physical);  // describe() found it
  family_ = family.number;
  stamp_bits_ = timed ? family.properties.timestampValidBits : 0;
  has_half_storage_ = stores_halves(instance_, physical);
  VkPhysicalDevice16BitStorageFeatures half_storage{};
  half_storage.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES;
  half_storage.storageBuffer16BitAccess = has_half_storage_ ? VK_TRUE : VK_FALSE;
  const float priority = 1;
  VkDeviceQueueCreateInfo queue{};
  queue.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
  queue.queueFamilyIndex = family_;
  queue.queueCount = 1;
  queue.pQueuePriorities = &priority;
  VkDeviceCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
  info.pNext = &half_storage;
  info.queueCreateInfoCount = 1;
  info.pQueueCreateInfos = &queue;
  const VkResult result = instance.CreateDevice(physical, &info, nullptr, &device_);
  if (result != VK_SUCCESS) {
    device_ = VK_NULL_HANDLE;
    return failed("while opening it", result);
  }
#define ZO_VULKAN_GET(name) vk_.name = reinterpret_cast<PFN_vk##name>(instance.GetDeviceProcAddr(device_, "vk" #name));
  ZO_VULKAN_DEVICE_FUNCTIONS(ZO_VULKAN_GET)
#undef ZO_VULKAN_GET
  vk_.GetDeviceQueue(device_, family_, 0, &queue_);
  VkPhysicalDeviceProperties properties;
  instance.GetPhysicalDeviceProperties(physical, &properties);
  stamp_nanoseconds_ = double{properties.limits.timestampPeriod};
  cache_file_ = "vulkan-" + sha256_hex(properties.pipelineCacheUUID, VK_UUID_SIZE).substr(0, 16) + ".pipelines";
  return create_objects();
}

// A driver is to be given nothing but what it made: the file ends with the content's hash.
VkResult Device::open_pipeline_cache() {
  std::string content;
  if (!cache_.empty()) {
    auto kept = read_file(join(cache_, cache_file_), ZO_STATE_ERROR);
    if (kept.ok() && kept->size() > kHashDigits) {
      const size_t size = kept->size() - kHashDigits;
      content = sha256_hex(kept->data(), size) == kept->substr(size) ? kept->substr(0, size) : "";
    }
  }
  VkPipelineCacheCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO;
  info.initialDataSize = content.size();
  info.pInitialData = content.data();
  return made(vk_.CreatePipelineCache(device_, &info, nullptr, &pipeline_cache_), pipeline_cache_);
}

// Without it shaders are only compiled again, so that nobody hears of a folder that cannot be written.
void Device::keep_pipeline_cache() {
  size_t size = 0;
  if (cache_.empty() || !cache_grew_ ||
      vk_.GetPipelineCacheData(device_, pipeline_cache_, &size, nullptr) != VK_SUCCESS || size > kMostCache) {
    return;
  }
  std::string content(size, '\0');
  if (vk_.GetPipelineCacheData(device_, pipeline_cache_, &size, content.data()) != VK_SUCCESS) {
    return;
  }
  content.resize(size);
  content += sha256_hex(content.data(), content.size());
  if (make_folder(cache_).ok()) {
    (void)write_file(join(cache_, cache_file_),
                     [&](int descriptor) { return write_all(descriptor, content.data(), content.size()); });
  }
}

Status Device::create_objects() {
  VkDescriptorSetLayoutBinding bindings[kBindings] = {};
  for (uint32_t i = 0; i < kBindings; ++i) {
    bindings[i].binding = i;
    bindings[i].descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    bindings[i].descriptorCount = 1;
    bindings[i].stageFlags = VK_SHADER_STAGE_COMPUTE_BIT;
  }
  VkDescriptorSetLayoutCreateInfo set{};
  set.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO;
  set.bindingCount = kBindings;
  set.pBindings = bindings;
  VkResult result = made(vk_.CreateDescriptorSetLayout(device_, &set, nullptr, &set_layout_), set_layout_);
  const VkPushConstantRange pushed{VK_SHADER_STAGE_COMPUTE_BIT, 0, kMostPushed * sizeof(uint32_t)};
  VkPipelineLayoutCreateInfo layout{};
  layout.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
  layout.setLayoutCount = 1;
  layout.pSetLayouts = &set_layout_;
  layout.pushConstantRangeCount = 1;
  layout.pPushConstantRanges = &pushed;
  if (result == VK_SUCCESS) {
    result = made(vk_.CreatePipelineLayout(device_, &layout, nullptr, &pipeline_layout_), pipeline_layout_);
  }
  if (result == VK_SUCCESS) {
    result = open_pipeline_cache();
  }
  const VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, kBindings * kMostWindows};
  VkDescriptorPoolCreateInfo descriptors{};
  descriptors.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO;
  descriptors.maxSets = kMostWindows;
  descriptors.poolSizeCount = 1;
  descriptors.pPoolSizes = &size;
  if (result == VK_SUCCESS) {
    result = made(vk_.CreateDescriptorPool(device_, &descriptors, nullptr, &descriptors_), descriptors_);
  }
  VkCommandPoolCreateInfo commands{};
  commands.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
  commands.queueFamilyIndex = family_;
  if (result == VK_SUCCESS) {
    result = made(vk_.CreateCommandPool(device_, &commands, nullptr, &commands_), commands_);
  }
  VkFenceCreateInfo fence{};
  fence.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO;
  if (result == VK_SUCCESS) {
    result = made(vk_.CreateFence(device_, &fence, nullptr, &fence_), fence_);
  }
  return result == VK_SUCCESS ? Status() : failed("while preparing it", result);
}

Device::~Device() {
  if (may_run()) {
    instance_.abandon();
    return;
  }
  if (device_ == VK_NULL_HANDLE) {
    return;
  }
  if (end_ == VK_SUCCESS) {
    keep_pipeline_cache();
  }
  for (const auto& [key, pipeline] : pipelines_) {
    vk_.DestroyPipeline(device_, pipeline, nullptr);
  }
  for (VkQueryPool stamps : stamps_) {
    vk_.DestroyQueryPool(device_, stamps, nullptr);
  }
  vk_.DestroyFence(device_, fence_, nullptr);
  vk_.DestroyCommandPool(device_, commands_, nullptr);
  vk_.DestroyDescriptorPool(device_, descriptors_, nullptr);
  vk_.DestroyPipelineCache(device_, pipeline_cache_, nullptr);
  vk_.DestroyPipelineLayout(device_, pipeline_layout_, nullptr);
  vk_.DestroyDescriptorSetLayout(device_, set_layout_, nullptr);
  vk_.DestroyDevice(device_, nullptr);
}

// Memory of the device that the host sees, best with a cache, as it reads results from there.
Result<uint32_t> Device::memory_type(uint32_t allowed) const {
  constexpr VkMemoryPropertyFlags kSeen = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  constexpr VkMemoryPropertyFlags kNear = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
  constexpr VkMemoryPropertyFlags kCached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  for (const VkMemoryPropertyFlags wanted : {kSeen | kNear | kCached, kSeen | kNear, kSeen | kCached, kSeen}) {
    for (uint32_t type = 0; type < memory_.memoryTypeCount; ++type) {
      if ((allowed >> type & 1) != 0 && (memory_.memoryTypes[type].propertyFlags & wanted) == wanted) {
        return type;
      }
    }
  }
  return none(name_ + " with no memory that the host sees", "a device with such memory");
}

Device::Buffer& Device::Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device, other.device);
  std::swap(handle, other.handle);
  std::swap(memory, other.memory);
  std::swap(data, other.data);
  std::swap(bytes, other.bytes);
  std::swap(allocated, other.allocated);
  return *this;
}

Device::Buffer::~Buffer() {
  if (device != nullptr && !device->may_run()) {
    device->vk_.DestroyBuffer(device->device_, handle, nullptr);
    device->vk_.FreeMemory(device->device_, memory, nullptr);
    device->bytes_ -= allocated;
  }
}

Result<Device::Buffer> Device::make_buffer(uint64_t bytes) {
  Buffer buffer;
  buffer.device = this;
  buffer.bytes = std::max<uint64_t>(bytes, 16);
  const std::string doing = "while making a buffer of " + std::to_string(buffer.bytes) + " bytes";
  VkBufferCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
  info.size = buffer.bytes;
  info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT;
  VkResult result = made(vk_.CreateBuffer(device_, &info, nullptr, &buffer.handle), buffer.handle);
  if (result != VK_SUCCESS) {
    return failed(doing, result);
  }
  VkMemoryRequirements needed;
  vk_.GetBufferMemoryRequirements(device_, buffer.handle, &needed);
  ZO_ASSIGN(type, memory_type(needed.memoryTypeBits));
  VkMemoryAllocateInfo allocation{};
  allocation.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
  allocation.allocationSize = needed.size;
  allocation.memoryTypeIndex = type;
  result = made(vk_.AllocateMemory(device_, &allocation, nullptr, &buffer.memory), buffer.memory);
  if (result == VK_SUCCESS) {
    buffer.allocated = needed.size;
    bytes_ += needed.size;
    result = vk_.BindBufferMemory(device_, buffer.handle, buffer.memory, 0);
  }
  void* data = nullptr;
  if (result == VK_SUCCESS) {
    result = vk_.MapMemory(device_, buffer.memory, 0, VK_WHOLE_SIZE, 0, &data);
  }
  if (result != VK_SUCCESS) {
    return failed(doing, result);
  }
  buffer.data = static_cast<uint8_t*>(data);
  return buffer;
}

Result<std::vector<VkDescriptorSet>> Device::bind(const Buffer& pool, const std::vector<Buffer>& windows,
                                                  const Buffer& code) {
  // All of them or none: those that were made could not be given back alone.
  const std::vector<VkDescriptorSetLayout> layouts(windows.size(), set_layout_);
  std::vector<VkDescriptorSet> sets(windows.size());
  VkDescriptorSetAllocateInfo allocation{};
  allocation.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO;
  allocation.descriptorPool = descriptors_;
  allocation.descriptorSetCount = static_cast<uint32_t>(sets.size());
  allocation.pSetLayouts = layouts.data();
  const VkResult result = vk_.AllocateDescriptorSets(device_, &allocation, sets.data());
  if (result != VK_SUCCESS) {
    return failed("while binding buffers", result);
  }
  for (size_t window = 0; window < windows.size(); ++window) {
    const Buffer* const buffers[kBindings] = {&pool, &windows[window], &code};
    VkDescriptorBufferInfo infos[kBindings] = {};
    VkWriteDescriptorSet writes[kBindings] = {};
    for (uint32_t i = 0; i < kBindings; ++i) {
      infos[i] = {buffers[i]->handle, 0, buffers[i]->bytes};
      writes[i].sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET;
      writes[i].dstSet = sets[window];
      writes[i].dstBinding = i;
      writes[i].descriptorCount = 1;
      writes[i].descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
      writes[i].pBufferInfo = &infos[i];
    }
    vk_.UpdateDescriptorSets(device_, kBindings, writes, 0, nullptr);
  }
  return sets;
}

Result<VkPipeline> Device::pipeline(const Dispatch& dispatch) {
  const PipelineKey key(dispatch.shader, dispatch.has_halves, dispatch.constants);
  const auto known = pipelines_.find(key);
  if (known != pipelines_.end()) {
    return known->second;
  }
  // A row program is a shader of its own; others are specialized.
  const bool is_rows = dispatch.shader == Shader::kRows;
  const std::vector<uint32_t> written =
      is_rows ? row_module(dispatch.constants, dispatch.has_halves) : std::vector<uint32_t>();
  const ShaderCode code =
      is_rows ? ShaderCode{written.data(), written.size()} : shader_code(dispatch.shader, dispatch.has_halves);
  VkShaderModuleCreateInfo module_info{};
  module_info.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
  module_info.codeSize = code.count * sizeof(uint32_t);
  module_info.pCode = code.words;
  VkShaderModule module = VK_NULL_HANDLE;
  VkResult result = vk_.CreateShaderModule(device_, &module_info, nullptr, &module);
  if (result != VK_SUCCESS) {
    return failed("while loading a shader", result);
  }
  std::vector<VkSpecializationMapEntry> entries;
  for (uint32_t i = 0; !is_rows && i < dispatch.constants.size(); ++i) {
    entries.push_back({i, i * static_cast<uint32_t>(sizeof(uint32_t)), sizeof(uint32_t)});
  }
  const VkSpecializationInfo constants{static_cast<uint32_t>(entries.size()), entries.data(),
                                       entries.size() * sizeof(uint32_t), dispatch.constants.data()};
  const VkPipelineShaderStageCreateInfo stage{VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                              nullptr,
                                              0,
                                              VK_SHADER_STAGE_COMPUTE_BIT,
                                              module,
                                              "main",
                                              &constants};
  const VkPipelineCreateFlags flags = is_divisible(dispatch.shader) ? VK_PIPELINE_CREATE_DISPATCH_BASE_BIT : 0;
  const VkComputePipelineCreateInfo info{
      VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO, nullptr, flags, stage, pipeline_layout_, VK_NULL_HANDLE, 0};
  VkPipeline made = VK_NULL_HANDLE;
  result = vk_.CreateComputePipelines(device_, pipeline_cache_, 1, &info, nullptr, &made);
  vk_.DestroyShaderModule(device_, module, nullptr);
  if (result != VK_SUCCESS) {
    return failed("while compiling a shader", result);
  }
  cache_grew_ = true;
  pipelines_.emplace(key, made);
  return made;
}

Result<VkQueryPool> Device::make_stamps(uint32_t count) {
  VkQueryPoolCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO;
  info.queryType = VK_QUERY_TYPE_TIMESTAMP;
  info.queryCount = count;
  VkQueryPool made = VK_NULL_HANDLE;
  const VkResult result = vk_.CreateQueryPool(device_, &info, nullptr, &made);
  if (result != VK_SUCCESS) {
    return failed("while making room for times", result);
  }
  stamps_.push_back(made);
  return made;
}

Result<std::vector<double>> Device::seconds(const Recording& recording) {
  if (recording.stamps == VK_NULL_HANDLE) {
    return std::vector<double>();
  }
  std::vector<uint64_t> stamps(recording.stamped.size());
  const VkResult result = vk_.GetQueryPoolResults(device_, recording.stamps, 0, static_cast<uint32_t>(stamps.size()),
                                                  stamps.size() * sizeof(uint64_t), stamps.data(), sizeof(uint64_t),
                                                  VK_QUERY_RESULT_64_BIT);
  if (result != VK_SUCCESS) {
    return failed("while reading times", result);
  }
  const uint64_t valid = stamp_bits_ < 64 ? (uint64_t{1} << stamp_bits_) - 1 : UINT64_MAX;  // then it begins again
  std::vector<double> found(recording.dispatches, 0.0);
  for (size_t i = 0; i < stamps.size(); ++i) {
    if (recording.stamped[i] != kBegin) {
      found[recording.stamped[i]] +=
          static_cast<double>((stamps[i] - stamps[i - 1]) & valid) * stamp_nanoseconds_ * 1e-9;
    }
  }
  return found;
}

Status Device::begin_commands(Recording& recording) {
  VkCommandBufferAllocateInfo allocation{};
  allocation.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
  allocation.commandPool = commands_;
  allocation.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
  allocation.commandBufferCount = 1;
  VkCommandBuffer commands = VK_NULL_HANDLE;
  VkResult result = vk_.AllocateCommandBuffers(device_, &allocation, &commands);
  VkCommandBufferBeginInfo begin{};
  begin.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
  if (result == VK_SUCCESS) {
    recording.parts.push_back(commands);
    result = vk_.BeginCommandBuffer(commands, &begin);
  }
  return result == VK_SUCCESS ? Status() : failed("while recording a program", result);
}

void Device::stamp(Recording& recording, uint32_t ended) {
  if (recording.stamps != VK_NULL_HANDLE) {
    vk_.CmdWriteTimestamp(recording.parts.back(), VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, recording.stamps,
                          static_cast<uint32_t>(recording.stamped.size()));
    recording.stamped.push_back(ended);
  }
}

Result<Device::Recording> Device::record(const std::vector<Dispatch>& dispatches,
                                         const std::vector<VkDescriptorSet>& sets, double most_seconds) {
  Recording recording;
  const Status filled = fill(recording, dispatches, sets, most_seconds);
  if (filled.ok()) {
    return recording;
  }
  if (!recording.parts.empty()) {
    vk_.FreeCommandBuffers(device_, commands_, static_cast<uint32_t>(recording.parts.size()), recording.parts.data());
  }
  if (recording.stamps != VK_NULL_HANDLE) {
    vk_.DestroyQueryPool(device_, recording.stamps, nullptr);
    stamps_.pop_back();
  }
  return filled.failure();
}

Status Device::fill(Recording& recording, const std::vector<Dispatch>& dispatches,
                    const std::vector<VkDescriptorSet>& sets, double most_seconds) {
  const std::vector<std::vector<Piece>> parts = submissions_of(dispatches, most_seconds);
  recording.dispatches = static_cast<uint32_t>(dispatches.size());
  auto stamps = static_cast<uint32_t>(parts.size());
  for (const std::vector<Piece>& part : parts) {
    stamps += static_cast<uint32_t>(part.size());
  }
  if (stamp_bits_ > 0) {
    ZO_ASSIGN(made, make_stamps(stamps));
    recording.stamps = made;
  }
  const auto barrier = [&](VkAccessFlags access, VkPipelineStageFlags stage) {
    VkMemoryBarrier memory{};
    memory.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
    memory.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT;
    memory.dstAccessMask = access;
    vk_.CmdPipelineBarrier(recording.parts.back(), VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, stage, 0, 1, &memory, 0,
                           nullptr, 0, nullptr);
  };
  const auto meets = [](const std::vector<Span>& some, const std::vector<Span>& others) {
    return std::any_of(some.begin(), some.end(), [&](const Span& span) {
      return std::any_of(others.begin(), others.end(), [&](const Span& other) { return span.meets(other); });
    });
  };
  constexpr VkAccessFlags kShader = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;
  for (const std::vector<Piece>& part : parts) {
    const bool is_first = recording.parts.empty();
    ZO_TRY(begin_commands(recording));
    const VkCommandBuffer commands = recording.parts.back();
    if (!is_first) {
      barrier(kShader, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT);
    } else if (recording.stamps != VK_NULL_HANDLE) {
      vk_.CmdResetQueryPool(commands, recording.stamps, 0, stamps);
    }
    stamp(recording, kBegin);
    std::vector<Span> read, written;  // since the last barrier
    uint32_t before = kBegin;
    for (const Piece& piece : part) {
      const Dispatch& dispatch = dispatches[piece.dispatch];
      if (piece.dispatch != before) {
        if (meets(dispatch.reads, written) || meets(dispatch.writes, written) || meets(dispatch.writes, read)) {
          barrier(kShader, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT);
          read.clear();
          written.clear();
        }
        read.insert(read.end(), dispatch.reads.begin(), dispatch.reads.end());
        written.insert(written.end(), dispatch.writes.begin(), dispatch.writes.end());
      }
      before = piece.dispatch;
      ZO_ASSIGN(made, pipeline(dispatch));
      vk_.CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, made);
      vk_.CmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline_layout_, 0, 1,
                                &sets[dispatch.window], 0, nullptr);
      vk_.CmdPushConstants(commands, pipeline_layout_, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                           static_cast<uint32_t>(dispatch.pushed.size() * sizeof(uint32_t)), dispatch.pushed.data());
      vk_.CmdDispatchBase(commands, piece.base[0], piece.base[1], piece.base[2], piece.groups[0], piece.groups[1],
                          piece.groups[2]);
      stamp(recording, piece.dispatch);
    }
    barrier(VK_ACCESS_HOST_READ_BIT, VK_PIPELINE_STAGE_HOST_BIT);
    const VkResult result = vk_.EndCommandBuffer(commands);
    if (result != VK_SUCCESS) {
      return failed("while recording a program", result);
    }
  }
  return {};
}

Status Device::submit(const Recording& recording) {
  ZO_TRY(check());
  for (const VkCommandBuffer& part : recording.parts) {
    VkSubmitInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
    info.commandBufferCount = 1;
    info.pCommandBuffers = &part;
    VkResult result = vk_.ResetFences(device_, 1, &fence_);
    if (result == VK_SUCCESS) {
      result = vk_.QueueSubmit(queue_, 1, &info, fence_);
    }
    if (result == VK_SUCCESS) {
      // After a failed wait, it is unknown when the device will be done.
      result = end_ = vk_.WaitForFences(device_, 1, &fence_, VK_TRUE, kMostNanoseconds);
    }
    if (result != VK_SUCCESS) {
      return failed("while running a program", result);
    }
  }
  return {};
}

}  // namespace vulkan
}  // namespace zoexport
