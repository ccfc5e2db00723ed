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
#include "folder.h"
#include "session/manifest/bundle_files.h"
#include "session/storage/dtypes.h"
#include "threads.h"

namespace {

using namespace zoexport;
using executorch::aten::ScalarType;
using executorch::runtime::Program;

constexpr size_t kMostBytes = size_t{1} << 20;  // of an input or output
constexpr size_t kMostMethods = 2;

int32_t dtype_of(ScalarType type) {
  switch (type) {
    case ScalarType::Long:
      return ZO_INT64;
    case ScalarType::Byte:
      return ZO_UINT8;
    case ScalarType::BFloat16:
      return ZO_BFLOAT16;
    case ScalarType::Char:
      return ZO_INT8;
    case ScalarType::Half:
      return ZO_FLOAT16;
    case ScalarType::Int:
      return ZO_INT32;
    default:
      return ZO_FLOAT32;
  }
}

// Whether it is small enough to be run here; `spec` is what the manifest then says.
template <typename Meta>
bool value_of(const Meta& meta, size_t number, const char* role, ValueSpec& spec) {
  spec.name = role + std::to_string(number);
  spec.role = role;
  if (!meta.ok()) {
    spec.shape = {{1, 1}};
    return true;
  }
  spec.dtype = dtype_of(meta->scalar_type());
  uint64_t elements = 1;
  for (const int32_t size : meta->sizes()) {
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
  for (size_t i = 0; i < std::min(program->num_methods(), kMostMethods); ++i) {
    const auto name = program->get_method_name(i);
    const auto meta = name.ok() ? program->method_meta(*name) : executorch::runtime::Error::InvalidProgram;
    if (!meta.ok()) {
      continue;
    }
    ProgramSpec spec;
    spec.name = spec.method = *name;
    spec.file = "model.bin";
    bool small = meta->num_inputs() <= 64 && meta->num_outputs() <= 64;
    for (size_t input = 0; small && input < meta->num_inputs(); ++input) {
      small = value_of(meta->input_tensor_meta(input), input, "x", spec.inputs.emplace_back());
    }
    for (size_t output = 0; small && output < meta->num_outputs(); ++output) {
      small = value_of(meta->output_tensor_meta(output), output, "y", spec.outputs.emplace_back());
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
  PackedUse use;
  static const Manifest nothing;
  static const bool begun = [&] {
    auto opened = open_bundle(folder.path());
    MUST(opened.ok());
    const BundleFiles files(std::move(*opened), nothing, true);
    MUST(make_executorch_engine(nothing, files, 0, "", use).ok());  // its handlers of messages and assertions
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
    manifest.programs.back().name = manifest.programs.back().method = "forward";
    manifest.programs.back().file = "model.bin";
  }
  auto opened = open_bundle(folder.path());
  MUST(opened.ok());
  const BundleFiles files(std::move(*opened), manifest, /*skip_hashes=*/true);
  const auto engine = make_executorch_engine(manifest, files, 0, "", use);
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
