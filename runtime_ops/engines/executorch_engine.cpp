#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor_ptr_maker.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "engines/engine.h"
#include "session/files.h"

// The wheel has this library but not its header.
namespace executorch::extension::threadpool {
class ThreadPool {
 public:
  size_t get_thread_count() const;
  bool _unsafe_reset_threadpool(uint32_t threads);
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool

namespace zoexport {
namespace {

using executorch::aten::ScalarType;
using executorch::extension::from_blob;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;

Failure failed(const ProgramSpec& program, const std::string& found, const std::string& fix) {
  return {ZO_ENGINE_ERROR, "program " + program.name + " (" + program.file + ")", found, "ExecuTorch to run it", fix};
}

// What ExecuTorch logged as errors on this thread since the last call of forget_log().
thread_local std::string logged;

void forget_log() { logged.clear(); }

// Errors become part of our own message; what is only information does not belong on a host's standard error.
void keep_errors(et_timestamp_t, et_pal_log_level_t level, const char*, const char*, size_t, const char* message,
                 size_t length) {
  if (level == et_pal_log_level_t::kFatal) {
    std::fprintf(stderr, "ExecuTorch: %.*s\n", static_cast<int>(length), message);
  }
  constexpr size_t kEnough = 400;
  if (level == et_pal_log_level_t::kError && logged.size() < kEnough) {
    logged += "; " + std::string(message, length);
  }
}

std::string code_text(Error error) {
  char text[48];
  std::snprintf(text, sizeof(text), "ExecuTorch error 0x%02x", static_cast<unsigned>(error));
  return text + logged;
}

ScalarType scalar_type(int32_t dtype) { return dtype == ZO_INT64 ? ScalarType::Long : ScalarType::Float; }

// Whether an operator is registered: "zoexport::zo_update.out", or any overload of a name without one.
bool has_operator(const std::string& name) {
  const auto kernels = executorch::runtime::get_registered_kernels();
  return std::any_of(kernels.begin(), kernels.end(), [&](const executorch::runtime::Kernel& kernel) {
    const std::string registered = kernel.name_;
    return registered == name || registered.compare(0, name.size() + 1, name + ".") == 0;
  });
}

class ExecutorchEngine : public Engine {
 public:
  explicit ExecutorchEngine(std::string bundle) : bundle_(std::move(bundle)) {}

  Status load(const ProgramSpec& program) override {
    forget_log();
    ZO_ASSIGN(module, loaded(program));
    (void)module;
    return {};
  }

  Status run(const ProgramSpec& program, const std::vector<Tensor>& inputs,
             const std::vector<Tensor>& outputs) override {
    forget_log();
    ZO_ASSIGN(module, loaded(program));
    std::vector<TensorPtr> tensors;  // own the shapes that the values refer to
    std::vector<EValue> values;
    for (const Tensor& input : inputs) {
      std::vector<executorch::aten::SizesType> sizes(input.shape.begin(), input.shape.end());
      tensors.push_back(from_blob(input.data, std::move(sizes), scalar_type(input.dtype)));
      values.emplace_back(tensors.back());
    }
    auto results = module->execute(program.method, values);
    if (!results.ok()) {
      return failed(program, code_text(results.error()), "Compile the bundle with this version of zoexport; report it if that does not help.");
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].data == nullptr) {
        continue;
      }
      const EValue& value = (*results)[i];
      if (!value.isTensor() || value.toTensor().scalar_type() != scalar_type(outputs[i].dtype) ||
          value.toTensor().nbytes() != outputs[i].bytes) {
        return failed(program, std::string("another type or size of the output ") + outputs[i].name,
                      "Compile the bundle again.");
      }
      std::memcpy(outputs[i].data, value.toTensor().const_data_ptr(), outputs[i].bytes);
    }
    return {};
  }

 private:
  // Files are mapped, and a program is loaded only when it is to run: each one loaded costs memory.
  Result<Module*> loaded(const ProgramSpec& program) {
    std::unique_ptr<Module>& module = modules_[program.file];
    if (module == nullptr) {
      module = std::make_unique<Module>(join(bundle_, program.file), Module::LoadMode::Mmap);
    }
    if (module->is_method_loaded(program.method)) {
      return module.get();
    }
    const Error error = module->load_method(program.method);
    if (error != Error::Ok) {
      return failed(program, "while loading, " + code_text(error),
                    "Compile the bundle with this version of zoexport; report it if that does not help.");
    }
    const auto meta = module->method_meta(program.method);
    if (!meta.ok() || meta->num_inputs() != program.inputs.size() || meta->num_outputs() != program.outputs.size()) {
      module->unload_method(program.method);
      return failed(program, "other inputs or outputs than the manifest's", "Compile the bundle again.");
    }
    return module.get();
  }

  std::string bundle_;
  std::map<std::string, std::unique_ptr<Module>> modules_;
};

}  // namespace

Result<std::unique_ptr<Engine>> make_executorch_engine(const Manifest& manifest, const std::string& bundle,
                                                       uint32_t threads) {
  static std::once_flag once;
  std::call_once(once, [] {
    executorch::runtime::register_pal(executorch::runtime::PalImpl::create(keep_errors, __FILE__));
    executorch::runtime::runtime_init();
  });
  for (const std::string& name : manifest.required_ops) {
    if (!has_operator(name)) {
      return Failure{ZO_BUNDLE_ERROR, join(bundle, "manifest.json"), "the operator " + name,
                     "operators that this runtime has", "Use the zoexport version that compiled this bundle."};
    }
  }
  if (threads > 0) {
    auto* pool = executorch::extension::threadpool::get_threadpool();
    if (pool != nullptr && pool->get_thread_count() != threads && !pool->_unsafe_reset_threadpool(threads)) {
      return Failure{ZO_INVALID_ARGUMENT, "threads", std::to_string(threads), "a number of threads that can be started",
                     "Ask for fewer threads."};
    }
  }
  return std::unique_ptr<Engine>(std::make_unique<ExecutorchEngine>(bundle));
}

}  // namespace zoexport
