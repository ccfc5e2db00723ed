#ifndef ET_USE_THREADPOOL
#define ET_USE_THREADPOOL  // libexecutorch_threadpool.so is linked: parallel_for is its function
#endif

#include <dlfcn.h>
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor_ptr_maker.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/kernel/thread_parallel_interface.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>

#include "engines/engine.h"
#include "engines/mapped_loader.h"
#include "engines/planned_memory.h"
#include "engines/program_tables.h"
#include "engines/team.h"
#include "session/memory.h"
#include "session/storage/files.h"

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

// Errors that ExecuTorch logged on this thread since the last call of forget_log().
thread_local std::string logged;

void forget_log() { logged.clear(); }

// A failed assertion of ExecuTorch, which would end the process: a program file may state what no compiler writes, such as
// a number where an operator takes a list.
struct FailedAssertion : std::exception {};

// True while this thread is in a call whose assertions may fail.
thread_local bool may_fail = false;

// Errors become part of our own message; what is only information does not belong on a host's standard error.
void keep_errors(et_timestamp_t, et_pal_log_level_t level, const char*, const char*, size_t, const char* message,
                 size_t length) {
  const bool fatal = level == et_pal_log_level_t::kFatal;
  if (fatal && !may_fail) {
    std::fprintf(stderr, "ExecuTorch: %.*s\n", static_cast<int>(length), message);
  }
  constexpr size_t kEnough = 400;
  if ((fatal || level == et_pal_log_level_t::kError) && logged.size() < kEnough) {
    logged += "; " + std::string(message, length);
  }
}

[[noreturn]] void end_call() {
  if (may_fail) {
    throw FailedAssertion();
  }
  std::abort();
}

// The result of `body`, a Status or a Result; `failed` makes it where an assertion fails.
template <typename Body, typename Failed>
auto unless_assertion(const Body& body, const Failed& failed) -> decltype(body()) {
  struct Mark {
    Mark() { may_fail = true; }
    ~Mark() { may_fail = false; }
  } mark;
  forget_log();
  try {
    return body();
  } catch (const FailedAssertion&) {
    return failed();
  }
}

std::string code_text(Error error) {
  char text[48];
  std::snprintf(text, sizeof(text), "ExecuTorch error 0x%02x", static_cast<unsigned>(error));
  return text + logged;
}

ScalarType scalar_type(int32_t dtype) {
  switch (dtype) {
    case ZO_INT64:
      return ScalarType::Long;
    case ZO_UINT8:
      return ScalarType::Byte;
    case ZO_BFLOAT16:
      return ScalarType::BFloat16;
    case ZO_INT8:
      return ScalarType::Char;
    case ZO_FLOAT16:
      return ScalarType::Half;
    case ZO_INT32:
      return ScalarType::Int;
    default:
      return ScalarType::Float;
  }
}

// Return whether an operator is registered: "zoexport::zo_update.out", or any overload of a name without one.
bool has_operator(const std::string& name) {
  const auto kernels = executorch::runtime::get_registered_kernels();
  return std::any_of(kernels.begin(), kernels.end(), [&](const executorch::runtime::Kernel& kernel) {
    const std::string registered = kernel.name_;
    return registered == name || registered.compare(0, name.size() + 1, name + ".") == 0;
  });
}

// The NPU's processor loads its part of QNN from the folders in this variable: on a phone, from this library's folder.
void name_folder_for_npu() {
  Dl_info own;
  if (dladdr(reinterpret_cast<void*>(&name_folder_for_npu), &own) != 0 && own.dli_fname != nullptr) {
    const std::string path = own.dli_fname;
    setenv("ADSP_LIBRARY_PATH", path.substr(0, path.find_last_of('/')).c_str(), 0);
  }
}

// Return whether a backend is registered, or becomes so when its library is loaded: ExecuTorch's QNN backend is in a
// library of its own, named as in the Python package.
bool has_backend(const std::string& name) {
  const auto registered = [&] { return executorch::runtime::get_backend_class(name.c_str()) != nullptr; };
  if (name == "QnnBackend") {
    name_folder_for_npu();
    if (!registered()) {
      dlopen("libexecutorch_backend_qnn.so", RTLD_NOW | RTLD_LOCAL);
    }
  }
  return registered();
}

// The threads of all programs of this process are ExecuTorch's one pool, and a loaded program keeps a pointer to it: so it
// is replaced only while no session has a program. Our operators have a team of as many, while a session has programs.
class ThreadPoolUse {
 public:
  ThreadPoolUse() = default;
  ThreadPoolUse(const ThreadPoolUse&) = delete;
  ThreadPoolUse& operator=(const ThreadPoolUse&) = delete;
  ~ThreadPoolUse() {
    if (begun_) {
      const std::lock_guard<std::mutex> lock(mutex());
      if (--users() == 0) {
        Team::share(nullptr);
      }
    }
  }

  // Before a session loads its first program.
  void begin() {
    if (!begun_) {
      const std::lock_guard<std::mutex> lock(mutex());
      if (users()++ == 0) {
        auto* pool = executorch::extension::threadpool::get_threadpool();
        Team::share(std::make_unique<Team>(pool == nullptr ? 1 : pool->get_thread_count()));
      }
      begun_ = true;
    }
  }

  // Asks for a pool of `threads`.
  static Status choose(uint32_t threads) {
    const std::lock_guard<std::mutex> lock(mutex());
    auto* pool = executorch::extension::threadpool::get_threadpool();
    if (pool == nullptr || pool->get_thread_count() == threads) {
      return {};
    }
    if (users() > 0) {
      return Failure{
          ZO_INVALID_ARGUMENT, "threads", std::to_string(threads),
          std::to_string(pool->get_thread_count()) + ", as another session of this process has programs on that many",
          "Ask for that number or for 0, or close the other session first."};
    }
    if (!pool->_unsafe_reset_threadpool(threads)) {
      return Failure{ZO_INVALID_ARGUMENT, "threads", std::to_string(threads), "a number of threads that can be started",
                     "Ask for fewer threads."};
    }
    return {};
  }

 private:
  static std::mutex& mutex() {
    static std::mutex shared;
    return shared;
  }
  static size_t& users() {
    static size_t count = 0;  // sessions that have programs
    return count;
  }
  bool begun_ = false;
};

class ExecutorchEngine : public Engine {
 public:
  ExecutorchEngine(const Manifest& manifest, const BundleFiles& files) : manifest_(manifest), files_(files) {}

  Status load(const ProgramSpec& program) override {
    return unless_assertion(
        [&]() -> Status {
          ZO_ASSIGN(module, loaded(program));
          (void)module;
          return {};
        },
        [&]() -> Status { return drop(program); });
  }

  Status run(const ProgramSpec& program, const std::vector<Tensor>& inputs,
             const std::vector<Tensor>& outputs) override {
    return unless_assertion([&] { return execute(program, inputs, outputs); },
                            [&]() -> Status { return drop(program); });
  }

  void parallel(size_t count, size_t grain, const std::function<void(size_t, size_t)>& body) override {
    pool_.begin();
    Team::shared()->run(count, grain, body);
  }

 private:
  // Half-way through a call, what is loaded of the file is of no more use.
  Failure drop(const ProgramSpec& program) {
    modules_.erase(program.file);
    return failed(program, "an assertion of ExecuTorch that failed" + logged, "Compile the bundle again.");
  }

  Status execute(const ProgramSpec& program, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) {
    ZO_ASSIGN(module, loaded(program));
    std::vector<TensorPtr> tensors;  // own the shapes that the values refer to
    const auto value_of = [&](void* data, const std::vector<int64_t>& shape, int32_t dtype) {
      std::vector<executorch::aten::SizesType> sizes(shape.begin(), shape.end());
      tensors.push_back(from_blob(data, std::move(sizes), scalar_type(dtype)));
      return EValue(tensors.back());
    };
    const std::vector<size_t>& unplanned = unplanned_[program.name];
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (unplanned[i] > 0) {
        const bool fits = outputs[i].data != nullptr && outputs[i].bytes == unplanned[i];
        void* data = fits ? outputs[i].data : room_for(i, unplanned[i]);
        const auto elements = static_cast<int64_t>(unplanned[i] / dtype_bytes(outputs[i].dtype));
        const Error error = module->set_output(program.entry_point, value_of(data, {elements}, outputs[i].dtype), i);
        if (error != Error::Ok) {
          return failed(program, std::string("while setting the output ") + outputs[i].name + ", " + code_text(error),
                        "Compile the bundle again.");
        }
      }
    }
    std::vector<EValue> values;
    values.reserve(inputs.size());
    for (const Tensor& input : inputs) {
      values.push_back(value_of(input.data, input.shape, input.dtype));
    }
    auto results = module->execute(program.entry_point, values);
    if (!results.ok()) {
      return failed(program, code_text(results.error()),
                    "Compile the bundle with this version of zoexport; report it if that does not help.");
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
      const void* data = value.toTensor().const_data_ptr();
      if (data != outputs[i].data) {
        std::memcpy(outputs[i].data, data, outputs[i].bytes);
      }
    }
    return {};
  }

  // Files are mapped, and a program is loaded only when it is to run: each one loaded costs memory.
  Result<Module*> loaded(const ProgramSpec& program) {
    std::unique_ptr<Module>& module = modules_[program.file];
    if (module == nullptr) {
      pool_.begin();
      ZO_ASSIGN(opened, open_module(program));
      ZO_TRY(take_room(*opened, program));
      module = std::move(opened);
    }
    if (module->is_method_loaded(program.entry_point)) {
      return module.get();
    }
    std::unique_ptr<PlannedMemory>& memory = memory_[program.name];
    ZO_ASSIGN(planned, planned_memory(*module, program));
    memory = std::move(planned);
    forget_log();
    const Error error = module->load_method(program.entry_point, memory->allocator());
    // An operator that is not in the file's list is logged, and called all the same.
    if (error != Error::Ok || !logged.empty()) {
      module->unload_method(program.entry_point);
      return failed(program, "while loading, " + code_text(error),
                    "Compile the bundle with this version of zoexport; report it if that does not help.");
    }
    const auto meta = module->method_meta(program.entry_point);
    if (!meta.ok() || meta->num_inputs() != program.inputs.size() || meta->num_outputs() != program.outputs.size()) {
      module->unload_method(program.entry_point);
      return failed(program, "other inputs or outputs than the manifest's", "Compile the bundle again.");
    }
    std::vector<size_t>& unplanned = unplanned_[program.name];
    unplanned.assign(meta->num_outputs(), 0);
    for (size_t i = 0; i < unplanned.size(); ++i) {
      const auto output = meta->output_tensor_meta(i);
      unplanned[i] = output.ok() && !output->is_memory_planned() ? output->nbytes() : 0;
      if (!fits(program, unplanned[i]).ok()) {
        module->unload_method(program.entry_point);
        return out_of_memory(program, unplanned[i]);
      }
    }
    return module.get();
  }

  // A program file of a stranger: every offset in it is looked at before anything is read by it.
  Result<std::unique_ptr<Module>> open_module(const ProgramSpec& program) {
    forget_log();
    std::shared_ptr<const OpenFile>& file = opened_[program.file];
    if (file == nullptr) {
      ZO_ASSIGN(opened, files_.open(program.file));
      file = std::make_shared<const OpenFile>(std::move(opened));
    }
    auto module = std::make_unique<Module>(std::make_unique<MappedLoader>(file));
    const Error error = module->load(executorch::runtime::Program::Verification::InternalConsistency);
    if (error != Error::Ok) {
      return failed(program, "while opening, " + code_text(error),
                    "Compile the bundle with this version of zoexport; report it if that does not help.");
    }
    ZO_ASSIGN(content, MappedFile::of(*file, 0, file->size()));
    const std::string problem = program_problem(static_cast<const uint8_t*>(content.data()));
    if (!problem.empty()) {
      return failed(program, problem, "Compile the bundle again.");
    }
    return module;
  }

  // Makes the arena large enough for all programs of a file at once.
  Status take_room(Module& module, const ProgramSpec& program) {
    uint64_t most = 1;
    const auto room_of = [&](const std::vector<ProgramSpec>& programs) {
      for (const ProgramSpec& other : programs) {
        if (other.file == program.file) {
          const auto meta = module.method_meta(other.entry_point);
          most = std::max(most, meta.ok() ? PlannedArena::needed(*meta) : 0);
        }
      }
    };
    room_of(manifest_.programs);
    if (manifest_.generate) {
      room_of(manifest_.generate->programs);
    }
    ZO_TRY(fits(program, most));
    return arena_.take(static_cast<size_t>(most)) != nullptr ? Status() : out_of_memory(program, most);
  }

  // Refuses tensors that take more than this machine has: systems grant that, and end the process when it is used.
  static Status fits(const ProgramSpec& program, uint64_t bytes) {
    return bytes <= machine_memory() - PlannedArena::kAlignment ? Status() : out_of_memory(program, bytes);
  }

  static Failure out_of_memory(const ProgramSpec& program, uint64_t bytes) {
    return failed(
        program,
        "tensors that take " + bytes_text(bytes) + ", and " + bytes_text(machine_memory()) + " in this machine",
        "Close other programs, or compile with a smaller batch, max_length or queries.");
  }

  // Return memory for an output that is not wanted, or that the program may fill beyond the wanted size.
  void* room_for(size_t output, size_t bytes) {
    unwanted_.resize(std::max(unwanted_.size(), output + 1));
    unwanted_[output].resize(std::max(unwanted_[output].size(), bytes));
    return unwanted_[output].data();
  }

  Result<std::unique_ptr<PlannedMemory>> planned_memory(Module& module, const ProgramSpec& program) {
    const auto meta = module.method_meta(program.entry_point);
    if (!meta.ok()) {
      return failed(program, "while loading, " + code_text(meta.error()),
                    "Compile the bundle with this version of zoexport; report it if that does not help.");
    }
    const uint64_t bytes = PlannedArena::needed(*meta);
    ZO_TRY(fits(program, bytes));
    auto memory = std::make_unique<PlannedMemory>();
    if (!memory->place(*meta, arena_)) {
      return out_of_memory(program, bytes);
    }
    return memory;
  }

  const Manifest& manifest_;
  const BundleFiles& files_;
  ThreadPoolUse pool_;  // outlives the modules
  PlannedArena arena_;
  std::map<std::string, std::unique_ptr<PlannedMemory>> memory_;  // by program; outlives the modules
  std::map<std::string, std::vector<size_t>> unplanned_;  // by program: bytes of each output without planned memory
  std::vector<std::vector<uint8_t>> unwanted_;            // by output
  std::map<std::string, std::shared_ptr<const OpenFile>> opened_;
  std::map<std::string, std::unique_ptr<Module>> modules_;
};

}  // namespace

Status check_backends(const Manifest& manifest, const BundleFiles& files) {
  for (const std::string& name : manifest.backends) {
    if (!has_backend(name)) {
      return Failure{ZO_ENGINE_ERROR, "bundle " + files.path(),
                     "programs for the backend " + name + ", which this runtime lacks", "a runtime that has it",
                     "Run the bundle where target " + manifest.target + " runs."};
    }
  }
  return {};
}

Result<std::unique_ptr<Engine>> make_executorch_engine(const Manifest& manifest, const BundleFiles& files,
                                                       uint32_t threads) {
  static std::once_flag once;
  std::call_once(once, [] {
    executorch::runtime::register_pal(executorch::runtime::PalImpl::create(nullptr, end_call, nullptr, nullptr,
                                                                           keep_errors, nullptr, nullptr, __FILE__));
    executorch::runtime::runtime_init();
  });
  for (const std::string& name : manifest.required_ops) {
    if (!has_operator(name)) {
      return Failure{ZO_BUNDLE_ERROR, join(files.path(), "manifest.json"), "the operator " + name,
                     "operators that this runtime has", "Use the zoexport version that compiled this bundle."};
    }
  }
  if (threads > 0) {
    ZO_TRY(ThreadPoolUse::choose(threads));
  }
  return std::unique_ptr<Engine>(std::make_unique<ExecutorchEngine>(manifest, files));
}

}  // namespace zoexport
