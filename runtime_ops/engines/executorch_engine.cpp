#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor_ptr_maker.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

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

std::string code_text(Error error) {
  char text[48];
  std::snprintf(text, sizeof(text), "ExecuTorch error 0x%02x", static_cast<unsigned>(error));
  return text;
}

ScalarType scalar_type(int32_t dtype) { return dtype == ZO_INT64 ? ScalarType::Long : ScalarType::Float; }

class ExecutorchEngine : public Engine {
 public:
  explicit ExecutorchEngine(std::string bundle) : bundle_(std::move(bundle)) {}

  Status run(const ProgramSpec& program, const std::vector<Tensor>& inputs,
             const std::vector<Tensor>& outputs) override {
    ZO_ASSIGN(module, load(program));
    std::vector<TensorPtr> tensors;  // own the shapes that the values refer to
    std::vector<EValue> values;
    for (const Tensor& input : inputs) {
      std::vector<executorch::aten::SizesType> sizes(input.shape.begin(), input.shape.end());
      tensors.push_back(from_blob(input.data, std::move(sizes), scalar_type(input.dtype)));
      values.emplace_back(tensors.back());
    }
    auto results = module->execute(program.method, values);
    if (!results.ok()) {
      return failed(program, code_text(results.error()), "See ExecuTorch's message on standard error.");
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
  // Files are mapped, and a program is loaded when it is first run: each one loaded costs memory.
  Result<Module*> load(const ProgramSpec& program) {
    std::unique_ptr<Module>& module = modules_[program.file];
    if (module == nullptr) {
      module = std::make_unique<Module>(join(bundle_, program.file), Module::LoadMode::Mmap);
    }
    if (module->is_method_loaded(program.method)) {
      return module.get();
    }
    const Error error = module->load_method(program.method);
    if (error != Error::Ok) {
      return failed(program, code_text(error) + " while loading",
                    "See ExecuTorch's message on standard error; compile the bundle with this version of zoexport.");
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
  std::call_once(once, executorch::runtime::runtime_init);
  for (const std::string& name : manifest.required_ops) {
    if (!executorch::runtime::registry_has_op_function(name.c_str())) {
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
