// Programs of a bundle on a GPU, through Vulkan: each is recorded once and submitted as one, over memory that was planned
// when it was compiled.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <memory>

#include "engines/engine.h"
#include "engines/vulkan/device.h"
#include "engines/vulkan/program_file.h"

namespace zoexport {
namespace {

using vulkan::Device;

Failure failed(const ProgramSpec& program, const std::string& found, const std::string& expected) {
  return {ZO_ENGINE_ERROR, "program " + program.name + " (" + program.file + ")", found, expected,
          "Compile the bundle again."};
}

// The last data that was copied to a place of a window, and where it ends.
struct Brought {
  uint64_t end;
  const void* data;
};

// A program file with the buffers that its programs share.
struct Loaded {
  vulkan::ProgramFile file;
  Device::Buffer pool, code;
  std::vector<Device::Buffer> windows;
  std::vector<std::map<uint64_t, Brought>> brought;  // by window and byte
  std::vector<VkDescriptorSet> sets;
  std::map<std::string, Device::Recording> recordings;  // by entry point
};

class VulkanEngine : public Engine {
 public:
  VulkanEngine(const Manifest& manifest, const BundleFiles& files, std::unique_ptr<Device> device)
      : manifest_(manifest), files_(files), device_(std::move(device)), costs_(vulkan::kKinds) {
    for (size_t kind = 0; kind < costs_.size(); ++kind) {
      costs_[kind].name = vulkan::kind_name(static_cast<vulkan::Kind>(kind));
    }
  }

  Status load(const ProgramSpec& program) override {
    ZO_TRY(device_->check());
    std::unique_ptr<Loaded>& loaded = loaded_[program.file];
    if (loaded == nullptr) {
      ZO_ASSIGN(opened, open_file(program));
      loaded = std::move(opened);
    }
    if (loaded->recordings.count(program.entry_point) == 0) {
      ZO_ASSIGN(recording, device_->record(loaded->file.programs.at(program.entry_point).dispatches, loaded->sets));
      loaded->recordings[program.entry_point] = recording;
    }
    return {};
  }

  Status run(const ProgramSpec& program, const std::vector<Tensor>& inputs,
             const std::vector<Tensor>& outputs) override {
    Loaded& loaded = *loaded_.at(program.file);
    const vulkan::Program& planned = loaded.file.programs.at(program.entry_point);
    const Range range = range_of(planned, inputs);
    for (int exponent = range.exponent;; exponent -= kSmaller) {
      ZO_TRY(run_once(program, loaded, planned, inputs, outputs, exponent));
      if (!planned.has_halves || !range.is_finite || are_finite(outputs)) {
        return {};
      }
      if (planned.scaled_inputs.empty() || range.exponent - exponent >= kSmaller * kMostTries) {
        return Failure{ZO_ENGINE_ERROR, "program " + program.name + " (" + program.file + ")",
                       "a result that is infinite or no number", "numbers that fp16 holds, up to 65504",
                       "Compile the bundle with compute=fp32; what was trained is kept."};
      }
    }
  }

  const std::vector<KernelCost>& kernel_costs() const override { return costs_; }
  uint64_t device_bytes() const override { return device_->bytes(); }

 private:
  // Gradients come to a program with their largest number between 2^7 and 2^8: what is 2^-22 of it is still a normal number
  // of fp16, and between its calls they may grow 256 times. Where they grow more, the program runs again with smaller ones.
  static constexpr int kLargest = 8, kSmaller = 6, kMostTries = 4;

  // Range of a program's inputs: the power of two for its gradients, and whether all are finite.
  struct Range {
    int exponent = 0;
    bool is_finite = true;
  };
  static Range range_of(const vulkan::Program& program, const std::vector<Tensor>& inputs) {
    Range range;
    if (!program.has_halves) {
      return range;
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      range.is_finite = range.is_finite && (!program.inputs[i].in_pool || is_finite(inputs[i]));
    }
    float most = 0;
    for (const size_t number : program.scaled_inputs) {
      const auto* values = static_cast<const float*>(inputs[number].data);
      for (size_t i = 0; i < inputs[number].bytes / sizeof(float); ++i) {
        most = std::max(most, std::fabs(values[i]));
      }
    }
    if (range.is_finite && most > 0) {
      range.exponent = std::clamp(kLargest - 1 - std::ilogb(most), -100, 100);
    }
    return range;
  }
  static bool is_finite(const Tensor& tensor) {
    const auto* values = static_cast<const float*>(tensor.data);
    const size_t count = tensor.dtype == ZO_FLOAT32 && values != nullptr ? tensor.bytes / sizeof(float) : 0;
    return std::all_of(values, values + count, [](float value) { return std::isfinite(value); });
  }
  static bool are_finite(const std::vector<Tensor>& tensors) {
    return std::all_of(tensors.begin(), tensors.end(), is_finite);
  }
  static void scale(const std::vector<size_t>& which, size_t number, float* values, size_t count, int exponent) {
    if (exponent != 0 && std::find(which.begin(), which.end(), number) != which.end()) {
      const float factor = std::ldexp(1.0f, exponent);
      std::for_each(values, values + count, [&](float& value) { value *= factor; });
    }
  }

  // Runs a program; inputs that may be scaled are multiplied by 2^exponent, and outputs scaled back.
  Status run_once(const ProgramSpec& program, Loaded& loaded, const vulkan::Program& planned,
                  const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs, int exponent) {
    for (const vulkan::LabelInput& labels : planned.labels) {
      const Tensor& input = inputs[labels.input];
      const auto* tokens = static_cast<const int64_t*>(input.data);
      ZO_TRY(check_below(program, input, tokens, input.bytes / sizeof(int64_t), labels.vocabulary));
    }
    for (const vulkan::Gather& gather : planned.gathers) {
      ZO_TRY(copy_rows(program, gather, inputs, loaded.pool.data));
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      const vulkan::InputPlace& place = planned.inputs[i];
      if (place.in_pool) {
        uint8_t* to = loaded.pool.data + uint64_t{place.word} * 4;
        std::memcpy(to, inputs[i].data, inputs[i].bytes);
        scale(planned.scaled_inputs, i, reinterpret_cast<float*>(to), inputs[i].bytes / sizeof(float), exponent);
      }
      for (const vulkan::WindowPart& part : place.parts) {
        bring(loaded, part, static_cast<const uint8_t*>(inputs[i].data) + part.from);
      }
    }
    const Device::Recording& recording = loaded.recordings.at(program.entry_point);
    ZO_TRY(device_->submit(recording));
    ZO_TRY(count(planned.dispatches, recording));
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].data != nullptr) {
        std::memcpy(outputs[i].data, loaded.pool.data + uint64_t{planned.outputs[i]} * 4, outputs[i].bytes);
        scale(planned.scaled_outputs, i, static_cast<float*>(outputs[i].data), outputs[i].bytes / sizeof(float),
              -exponent);
      }
    }
    return {};
  }

  Status count(const std::vector<vulkan::Dispatch>& dispatches, const Device::Recording& recording) {
    ZO_ASSIGN(seconds, device_->seconds(recording));
    for (size_t i = 0; i < dispatches.size(); ++i) {
      KernelCost& cost = costs_[static_cast<size_t>(dispatches[i].kind)];
      ++cost.dispatches;
      cost.flops += dispatches[i].work.flops;
      cost.bytes += dispatches[i].work.bytes;
      cost.seconds += seconds.empty() ? std::numeric_limits<double>::quiet_NaN() : seconds[i];
    }
    return {};
  }

  Result<std::unique_ptr<Loaded>> open_file(const ProgramSpec& program) {
    std::vector<const ProgramSpec*> programs;
    const auto add = [&](const std::vector<ProgramSpec>& some) {
      for (const ProgramSpec& other : some) {
        if (other.file == program.file) {
          programs.push_back(&other);
        }
      }
    };
    add(manifest_.programs);
    if (manifest_.generate) {
      add(manifest_.generate->programs);
    }
    ZO_ASSIGN(opened, files_.open(program.file));
    ZO_ASSIGN(text, opened.read());
    ZO_ASSIGN(file, vulkan::read_program_file(text, opened.path(), programs));
    const bool has_halves = std::any_of(file.programs.begin(), file.programs.end(),
                                        [](const auto& named) { return named.second.has_halves; });
    if (has_halves && !device_->has_half_storage()) {
      return Failure{ZO_ENGINE_ERROR, opened.path(),
                     "tensors of fp16, on " + device_->name() + ", which has none in buffers",
                     "a device with storageBuffer16BitAccess",
                     "Compile the bundle with compute=fp32, choose another device by ZOEXPORT_VULKAN_DEVICE, or the "
                     "CPU's engine ('--engine executorch')."};
    }
    auto loaded = std::make_unique<Loaded>();
    ZO_ASSIGN(pool, device_->make_buffer(4 * file.words));
    ZO_ASSIGN(code, device_->make_buffer(4 * file.code.size()));
    if (!file.code.empty()) {
      std::memcpy(code.data, file.code.data(), 4 * file.code.size());
    }
    for (const uint64_t bytes : file.windows) {
      ZO_ASSIGN(window, device_->make_buffer(bytes));
      loaded->windows.push_back(std::move(window));
    }
    ZO_ASSIGN(sets, device_->bind(pool, loaded->windows, code));
    loaded->sets = std::move(sets);
    loaded->brought.resize(file.windows.size());
    loaded->pool = std::move(pool);
    loaded->code = std::move(code);
    loaded->file = std::move(file);
    return loaded;
  }

  static Status check_below(const ProgramSpec& program, const Tensor& input, const int64_t* numbers, size_t count,
                            int64_t end) {
    for (size_t i = 0; i < count; ++i) {
      if (numbers[i] < 0 || numbers[i] >= end) {
        return failed(program, std::to_string(numbers[i]) + " in " + input.name,
                      "numbers from 0 to " + std::to_string(end - 1));
      }
    }
    return {};
  }

  static Status copy_rows(const ProgramSpec& program, const vulkan::Gather& gather, const std::vector<Tensor>& inputs,
                          uint8_t* pool) {
    const Tensor& table = inputs[gather.table];
    const Tensor& indices = inputs[gather.indices];
    const auto* numbers = static_cast<const int64_t*>(indices.data) + gather.first;
    const int64_t rows = table.shape[0];
    ZO_TRY(check_below(program, indices, numbers, gather.count, rows));
    const size_t bytes = table.bytes / static_cast<size_t>(rows);
    uint8_t* to = pool + uint64_t{gather.to} * 4;
    for (size_t i = 0; i < gather.count; ++i) {
      std::memcpy(to + i * bytes, static_cast<const uint8_t*>(table.data) + static_cast<size_t>(numbers[i]) * bytes,
                  bytes);
    }
    return {};
  }

  // Weights lie in a mapped file that does not change, so that what is in its place already need not be copied again.
  static void bring(Loaded& loaded, const vulkan::WindowPart& part, const uint8_t* data) {
    std::map<uint64_t, Brought>& brought = loaded.brought[part.window];
    const uint64_t end = part.at + part.bytes;
    const auto known = brought.find(part.at);
    if (known != brought.end() && known->second.data == data && known->second.end == end) {
      return;
    }
    // Layers of several kinds share a window.
    for (auto other = brought.begin(); other != brought.end();) {
      other = other->first < end && part.at < other->second.end ? brought.erase(other) : std::next(other);
    }
    std::memcpy(loaded.windows[part.window].data + part.at, data, part.bytes);
    brought[part.at] = {end, data};
  }

  const Manifest& manifest_;
  const BundleFiles& files_;
  std::unique_ptr<Device> device_;
  std::vector<KernelCost> costs_;                          // by kind
  std::map<std::string, std::unique_ptr<Loaded>> loaded_;  // by file
};

}  // namespace

Result<std::vector<VulkanDevice>> list_vulkan_devices() {
  ZO_ASSIGN(devices, vulkan::list_devices());
  std::vector<VulkanDevice> found;
  for (vulkan::DeviceInfo& device : devices) {
    found.push_back({std::move(device.name), std::move(device.kind), std::move(device.version),
                     std::move(device.problem), std::move(device.lacks)});
  }
  return found;
}

Result<std::unique_ptr<Engine>> make_vulkan_engine(const Manifest& manifest, const BundleFiles& files,
                                                   const std::string& cache, bool timed) {
  ZO_ASSIGN(device, Device::open(cache, timed));
  return std::unique_ptr<Engine>(std::make_unique<VulkanEngine>(manifest, files, std::move(device)));
}

}  // namespace zoexport
