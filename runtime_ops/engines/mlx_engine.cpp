// MLX: programs are functions in .mlxfn files, traced for certain shapes; every input is named. A library of its own
// (mlx_library.cpp loads it), so that nothing else needs MLX, or a part of an app's (mlx_linked.cpp).
#include "engines/mlx_engine.h"

#include <mlx/mlx.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>

namespace zoexport {
namespace {

namespace mx = mlx::core;

// Freed buffers that MLX may keep for the next call: on a GPU, where new ones are dear.
constexpr size_t kCacheBytes = size_t{32} << 20;

Failure failed(const ProgramSpec& program, const std::string& found, const std::string& expected,
               const std::string& fix) {
  return {ZO_ENGINE_ERROR, "program " + program.name + " (" + program.file + ")", found, expected, fix};
}

// The first line of what MLX says.
std::string said(const std::exception& error) {
  constexpr size_t kEnough = 300;
  const std::string text = error.what();
  return "MLX: " + text.substr(0, std::min(text.find('\n'), kEnough));
}

// Return whether it is MLX's error for a file that has no trace for a call's shapes.
bool says_no_trace(const std::exception& error) {
  return std::strstr(error.what(), "No imported function found") != nullptr;
}

mx::Dtype dtype_of(int32_t dtype) {
  switch (dtype) {
    case ZO_INT64:
      return mx::int64;
    case ZO_UINT8:
      return mx::uint8;
    case ZO_BFLOAT16:
      return mx::bfloat16;
    case ZO_INT8:
      return mx::int8;
    case ZO_UINT32:
      return mx::uint32;
    case ZO_FLOAT16:
      return mx::float16;
    case ZO_INT32:
      return mx::int32;
    default:
      return mx::float32;
  }
}

// Return a path of the open file, as MLX takes nothing else: the one it was opened by if the system has no better one.
std::string path_of(const OpenFile& file) {
#if defined(__linux__)
  return "/proc/self/fd/" + std::to_string(file.descriptor());
#else
  return file.path();
#endif
}

mx::Shape shape_of(const Tensor& tensor) { return {tensor.shape.begin(), tensor.shape.end()}; }

// MLX binds imported functions to the first stream of the process. One that any thread may use, one at a time, lets a
// session move between threads; streams that others made before serve only the thread that made them.
std::mutex& one_at_a_time() {
  static std::mutex mutex;
  static const bool made = mx::get_streams().empty() && (mx::new_thread_unsafe_stream(mx::default_device()), true);
  (void)made;
  return mutex;
}

class MlxEngine : public Engine {
 public:
  explicit MlxEngine(OpenProgram open) : open_(std::move(open)) {
    const std::lock_guard<std::mutex> lock(one_at_a_time());
    const bool gpu = mx::default_device() == mx::Device::gpu;
    mx::set_cache_limit(gpu ? kCacheBytes : 0);
  }

  Status load(const ProgramSpec& program) override {
    if (functions_.count(program.file) != 0) {
      return {};
    }
    ZO_ASSIGN(file, open_(program.file));
    const std::lock_guard<std::mutex> lock(one_at_a_time());
    try {
      functions_.emplace(program.file, mx::import_function(path_of(file)));
    } catch (const std::exception& error) {
      return failed(program, said(error), "a function that MLX " + std::string(mx::version()) + " reads",
                    "Compile the bundle with this version of MLX, or copy it again.");
    }
    return {};
  }

  Status run(const ProgramSpec& program, const std::vector<Tensor>& inputs,
             const std::vector<Tensor>& outputs) override {
    const std::lock_guard<std::mutex> lock(one_at_a_time());
    try {
      return call(program, inputs, outputs);
    } catch (const std::exception& error) {
      if (says_no_trace(error)) {
        return failed(program, "no function for " + shapes(inputs), "one that was traced for these shapes",
                      "Compile the bundle for rows of this length.");
      }
      if (std::strstr(error.what(), "There is no Stream") != nullptr) {
        return failed(program, said(error), "the thread in which MLX was first used",
                      "Open the session before anything else in the process uses MLX, or call it from that thread.");
      }
      return failed(program, said(error), "MLX to run it", "Close other programs; report it if that does not help.");
    }
  }

 private:
  Status call(const ProgramSpec& program, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) {
    mx::Kwargs named;
    for (const Tensor& input : inputs) {
      // Without a copy where MLX can: on Apple's GPUs, of pages that are mapped.
      named.emplace(input.name, mx::array(input.data, shape_of(input), dtype_of(input.dtype), [](void*) {}));
    }
    std::vector<mx::array> made = functions_.at(program.file)(named);
    named.clear();
    if (made.size() != outputs.size()) {
      return failed(program, std::to_string(made.size()) + " outputs", std::to_string(outputs.size()),
                    "Compile the bundle again.");
    }
    std::vector<mx::array> wanted;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].data == nullptr) {
        continue;
      }
      if (made[i].dtype() != dtype_of(outputs[i].dtype) || made[i].shape() != shape_of(outputs[i])) {
        return failed(program, std::string("another type or shape of the output ") + outputs[i].name, "the manifest's",
                      "Compile the bundle again.");
      }
      wanted.push_back(mx::contiguous(made[i]));
    }
    made.clear();  // what is not wanted is never computed
    mx::eval(wanted);
    size_t next = 0;
    for (const Tensor& output : outputs) {
      if (output.data != nullptr) {
        std::memcpy(output.data, wanted[next++].data<uint8_t>(), output.bytes);
      }
    }
    return {};
  }

  // The shapes that tell calls of a function apart; weights and slots are the same in all.
  static std::string shapes(const std::vector<Tensor>& inputs) {
    std::string text;
    for (const Tensor& input : inputs) {
      const bool varies = std::strchr(input.name, '.') == nullptr && !input.shape.empty();
      for (size_t i = 0; varies && i < input.shape.size(); ++i) {
        text += (i > 0 ? ", " : (text.empty() ? "" : "; ") + std::string(input.name) + " (") +
                std::to_string(input.shape[i]);
      }
      text += varies ? ")" : "";
    }
    return text;
  }

  OpenProgram open_;
  std::map<std::string, mx::ImportedFunction> functions_;  // by file
};

}  // namespace
}  // namespace zoexport

extern "C" ZO_API zoexport::Engine* zo_new_mlx_engine(const zoexport::OpenProgram* open, char* problem, size_t size) {
  try {
    return new zoexport::MlxEngine(*open);
  } catch (const std::exception& error) {
    std::strncpy(problem, error.what(), size - 1);
    return nullptr;
  }
}
