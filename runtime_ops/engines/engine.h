// An engine runs a bundle's programs. The session owns every buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "session/manifest/bundle_files.h"
#include "session/manifest/manifest.h"
#include "session/result.h"

namespace zoexport {

// A contiguous row-major tensor; `name` and `data` are borrowed. An output without data is not wanted.
struct Tensor {
  const char* name;
  int32_t dtype;
  std::vector<int64_t> shape;
  void* data;
  size_t bytes;
};

// Cost of an engine's kernels of one kind so far, over all programs.
struct KernelCost {
  std::string name;
  uint64_t dispatches = 0;
  double seconds = 0;  // on the device; NaN where nobody asked for them, or it does not say
  double flops = 0;    // by their sizes
  double bytes = 0;    // that they read and write, each once
};

class Engine {
 public:
  virtual ~Engine() = default;
  // Makes a program ready to run, from a file that matches the manifest. A second call does nothing.
  virtual Status load(const ProgramSpec& program) = 0;
  // Runs a program on inputs in the manifest's order and fills the outputs, in its order too. Inputs are not changed and
  // do not overlap outputs. The program has been loaded.
  virtual Status run(const ProgramSpec& program, const std::vector<Tensor>& inputs,
                     const std::vector<Tensor>& outputs) = 0;
  // Runs `body` on ranges that make up 0 .. count-1, each of at least `grain` except the last: on the threads of
  // programs if the engine can lend them, else on this one.
  virtual void parallel(size_t count, size_t grain, const std::function<void(size_t begin, size_t end)>& body) {
    (void)grain;
    body(0, count);
  }
  // Costs of each kind, in a fixed order; empty for an engine that does not count. Names keep their addresses.
  virtual const std::vector<KernelCost>& kernel_costs() const {
    static const std::vector<KernelCost> kNone;
    return kNone;
  }
  // Bytes of the buffers that it has made on a device.
  virtual uint64_t device_bytes() const { return 0; }
};

// Programs in .pte files of a bundle. `threads` 0 leaves the choice to ExecuTorch. `manifest` and `files` outlive the engine.
Result<std::unique_ptr<Engine>> make_executorch_engine(const Manifest& manifest, const BundleFiles& files,
                                                       uint32_t threads);

// Check that ExecuTorch has the backends that delegates of the bundle's programs call.
Status check_backends(const Manifest& manifest, const BundleFiles& files);

// Functions in .mlxfn files of a bundle, if this build has MLX. `files` outlives the engine.
Result<std::unique_ptr<Engine>> load_mlx_engine(const BundleFiles& files);

// Programs in files of dispatches, on a GPU with Vulkan, if this build has the engine. The driver's compiled shaders
// are kept in the folder `cache`, or nowhere if it is empty. `timed`: its kernels' seconds are counted too, if the
// device has a clock. `manifest` and `files` outlive the engine.
Result<std::unique_ptr<Engine>> make_vulkan_engine(const Manifest& manifest, const BundleFiles& files,
                                                   const std::string& cache, bool timed);
// A device for it, as in zo_vulkan_devices; `problem` is why it cannot run programs, or empty, and `lacks` what some
// programs need.
struct VulkanDevice {
  std::string name, kind, version, problem, lacks;
};
Result<std::vector<VulkanDevice>> list_vulkan_devices();

// Programs that the host runs.
std::unique_ptr<Engine> make_callback_engine(const zo_engine& callbacks);

}  // namespace zoexport
