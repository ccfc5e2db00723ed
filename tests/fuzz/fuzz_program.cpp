// A program file through ExecuTorch's engine: opened, loaded and run, or refused. An input is a .pte file; the manifest
// states the inputs and outputs that the file states, as that of whoever wrote the file would. ExecuTorch's own library is
// as the wheel has it: what is seen in there is a signal, a hang, or memory.
#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/runtime.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "engines/engine.h"
#include "engines/planned_memory.h"
#include "engines/program_tables.h"
#include "folder.h"
#include "session/manifest/bundle_files.h"
#include "session/storage/dtypes.h"
#include "threads.h"

namespace {

using namespace zoexport;
using executorch::runtime::Program;

constexpr size_t kMostBytes = size_t{1} << 20;  // of an input or output
constexpr size_t kMostMethods = 2;
constexpr uint64_t kMostPlanned = uint64_t{64} << 20;

// ExecuTorch's numbers of types that a manifest has.
int32_t dtype_of(int8_t type) {
  switch (type) {
    case 0:
      return ZO_UINT8;
    case 1:
      return ZO_INT8;
    case 3:
      return ZO_INT32;
    case 4:
      return ZO_INT64;
    case 5:
      return ZO_FLOAT16;
    case 15:
      return ZO_BFLOAT16;
    default:
      return ZO_FLOAT32;
  }
}

// What the manifest says of a value of the file, and whether it is small enough to be run here.
bool value_of(const std::vector<FlatTable>& values, int32_t index, const std::string& name, ValueSpec& spec) {
  spec.name = spec.role = name;
  spec.shape = {{1, 1}};
  if (index < 0 || static_cast<size_t>(index) >= values.size() || values[index].number<uint8_t>(0) != 5) {
    return true;
  }
  const auto tensor = values[index].table(1);
  if (!tensor) {
    return true;
  }
  spec.dtype = dtype_of(tensor->number<int8_t>(0));
  spec.shape.clear();
  uint64_t elements = 1;
  for (const int32_t size : tensor->numbers(2)) {
    if (size < 0 || size > (1 << 20) || (elements *= static_cast<uint64_t>(size)) > kMostBytes) {
      return false;
    }
    spec.shape.push_back({size, size});
  }
  return elements * dtype_bytes(spec.dtype) <= kMostBytes;
}

// The methods that a file has, as far as ExecuTorch reads it.
std::vector<ProgramSpec> programs_of(const uint8_t* data, size_t size) {
  std::vector<ProgramSpec> found;
  executorch::extension::BufferDataLoader loader(data, size);
  const auto program = Program::load(&loader, Program::Verification::InternalConsistency);
  if (!program.ok()) {
    return found;
  }
  const std::vector<FlatTable> plans = FlatTable::root(data).tables(1);
  for (size_t i = 0; i < std::min(plans.size(), kMostMethods); ++i) {
    const auto name = program->get_method_name(i);
    const auto meta = name.ok() ? program->method_meta(*name) : executorch::runtime::Error::InvalidProgram;
    // What a file asks for is compared with the machine's memory; here it must leave room for the rest.
    if (!meta.ok() || PlannedArena::needed(*meta) > kMostPlanned) {
      continue;
    }
    const std::vector<FlatTable> values = plans[i].tables(2);
    const std::vector<int32_t> inputs = plans[i].numbers(3), outputs = plans[i].numbers(4);
    ProgramSpec spec;
    spec.name = spec.entry_point = *name;
    spec.file = "model.bin";
    bool small = inputs.size() <= 64 && outputs.size() <= 64;
    for (size_t k = 0; small && k < inputs.size(); ++k) {
      small = value_of(values, inputs[k], "x" + std::to_string(k), spec.inputs.emplace_back());
    }
    for (size_t k = 0; small && k < outputs.size(); ++k) {
      small = value_of(values, outputs[k], "y" + std::to_string(k), spec.outputs.emplace_back());
    }
    if (small) {
      found.push_back(spec);
    }
  }
  return found;
}

// Values of a call; numbers of integers are small, as tokens and places are.
class Values {
 public:
  explicit Values(const std::vector<ValueSpec>& specs) {
    for (const ValueSpec& spec : specs) {
      std::vector<int64_t> shape;
      size_t elements = 1;
      for (const Dimension& axis : spec.shape) {
        shape.push_back(axis.max);
        elements *= static_cast<size_t>(axis.max);
      }
      const size_t element = dtype_bytes(spec.dtype), bytes = elements * element;
      memory_.push_back(std::make_unique<uint8_t[]>(bytes));
      for (size_t i = 0; i < elements; ++i) {
        const float number = 0.25f * static_cast<float>(i % 5);
        const auto whole = static_cast<int64_t>(1 - i % 2);
        if (spec.dtype == ZO_FLOAT32) {
          std::memcpy(&memory_.back()[i * element], &number, element);
        } else {
          std::memcpy(&memory_.back()[i * element], &whole, element);
        }
      }
      tensors_.push_back({spec.name.c_str(), spec.dtype, shape, memory_.back().get(), bytes});
    }
  }
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<std::unique_ptr<uint8_t[]>> memory_;
  std::vector<Tensor> tensors_;
};

void check(const Status& status) {
  if (!status.ok()) {
    const Failure& failure = status.failure();
    MUST(!failure.where.empty() && !failure.found.empty() && !failure.expected.empty() && !failure.fix.empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder("program");
  folder.write("model.bin", fuzz::text(data, size));
  static const Manifest nothing;
  static const bool begun = [&] {
    auto opened = open_bundle(folder.path());
    MUST(opened.ok());
    const BundleFiles files(std::move(*opened), nothing, true);
    MUST(make_executorch_engine(nothing, files, 0).ok());  // its handlers of messages and assertions
    fuzz::use_one_thread();
    return true;
  }();
  MUST(begun);
  Manifest manifest;
  manifest.engine = "executorch";
  manifest.files["model.bin"].bytes = size;
  manifest.programs = programs_of(data, size);
  if (manifest.programs.empty()) {
    manifest.programs.emplace_back();
    manifest.programs.back().name = manifest.programs.back().entry_point = "forward";
    manifest.programs.back().file = "model.bin";
  }
  auto opened = open_bundle(folder.path());
  MUST(opened.ok());
  const BundleFiles files(std::move(*opened), manifest, /*skip_hashes=*/true);
  const auto engine = make_executorch_engine(manifest, files, 0);
  MUST(engine.ok());
  for (const ProgramSpec& program : manifest.programs) {
    const Status loaded = (*engine)->load(program);
    check(loaded);
    if (loaded.ok()) {
      const Values inputs(program.inputs), outputs(program.outputs);
      check((*engine)->run(program, inputs.tensors(), outputs.tensors()));
    }
  }
  return 0;
}

// An assertion that ExecuTorch fails ends a call in the middle of its frames, which have no clean-up: what they held stays.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }
