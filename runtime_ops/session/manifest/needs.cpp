#include "session/manifest/needs.h"

#include <algorithm>
#include <map>

#include "session/manifest/roles.h"
#include "session/memory.h"
#include "session/storage/sizes.h"

namespace zoexport {
namespace {

// Limit of scratch files for data between stages: larger than any disk, and sums of it fit 64 bits.
constexpr uint64_t kMostScratch = uint64_t{1} << 46;
constexpr uint64_t kPadding = 64;  // of each tensor there

// Return the bytes of the noise and dropout inputs of programs: one array for each name.
uint64_t noise_bytes(const Manifest& manifest) {
  std::map<std::string, uint64_t> arrays;
  for (const ProgramSpec& program : manifest.programs) {
    for (const ValueSpec& value : program.inputs) {
      if (is_noise(value) || is_dropout(value)) {
        arrays[value.name] = std::max(arrays[value.name], value_bytes(value));
      }
    }
  }
  uint64_t bytes = 0;
  for (const auto& array : arrays) {
    bytes = size_sum(bytes, array.second);
  }
  return bytes;
}

// Return the bytes of a call's tokens, and of its labels if a program has a minimum number of them.
uint64_t call_bytes(const Manifest& manifest) {
  uint64_t least = 1;
  for (const ProgramSpec& program : manifest.programs) {
    const ValueSpec* positions = program.input("label_positions");
    if (positions != nullptr && !positions->shape.empty()) {
      least = std::max(least, static_cast<uint64_t>(positions->shape[0].min));
    }
  }
  // Tokens count twice, as copies may repeat them. A label has a position, a token and two outputs per copy.
  const uint64_t tokens = size_product(size_product(manifest.rows, manifest.max_length), 2 * sizeof(int64_t));
  const uint64_t outputs = size_product(manifest.copies, 2 * sizeof(float));
  return size_sum(tokens, size_product(least, size_sum(outputs, 2 * sizeof(int64_t))));
}

// Return the bytes of the rows that a head scores, and of their gradients.
uint64_t head_bytes(const Manifest& manifest) {
  const ProgramSpec* head = manifest.program(manifest.stages.back().forward, manifest.max_length);
  const ValueSpec* rows = head == nullptr ? nullptr : head->input("activation");
  return rows == nullptr ? 0 : size_product(value_bytes(*rows), 2);
}

// Return the bytes of the file for data between stages: a region of a stage's largest output for each copy or stage.
uint64_t scratch_bytes(const Manifest& manifest) {
  uint64_t region = 0;
  for (const ProgramSpec& program : manifest.programs) {
    uint64_t bytes = 0;
    for (const ValueSpec& value : program.outputs) {
      bytes = size_sum(bytes, size_sum(value_bytes(value), kPadding));
    }
    region = std::max(region, bytes);
  }
  const uint64_t passes = std::max<uint64_t>(manifest.copies, uint64_t{2} * manifest.queries());
  const uint64_t regions = 2 * passes + 2 * manifest.stages.size() + manifest.step.levels.size() + 4;
  return size_product(region, regions);
}

}  // namespace

uint64_t value_bytes(const ValueSpec& value) {
  uint64_t bytes = dtype_bytes(value.dtype);
  for (const Dimension& size : value.shape) {
    bytes = size_product(bytes, static_cast<uint64_t>(size.max));
  }
  return bytes;
}

Status check_needs(const Manifest& manifest, const std::string& where) {
  if (const uint64_t passed = scratch_bytes(manifest); passed > kMostScratch) {
    return Failure{ZO_BUNDLE_ERROR, where, "stages that pass on " + bytes_text(passed),
                   "at most " + bytes_text(kMostScratch),
                   "Compile the bundle with a smaller batch_size, max_length or num_queries."};
  }
  const uint64_t asked = size_sum(size_sum(call_bytes(manifest), noise_bytes(manifest)), head_bytes(manifest));
  if (asked <= machine_memory()) {
    return {};
  }
  return Failure{ZO_BUNDLE_ERROR, where, "calls whose rows, noise and labels take " + bytes_text(asked),
                 "at most the " + bytes_text(machine_memory()) + " of this machine's memory",
                 "Compile the bundle with a smaller batch_size, max_length or num_queries."};
}

Status check_batch(const RunSettings& run, uint32_t max_length) {
  const uint64_t batch = run.whole("batch_size"),
                 gradient_accumulation_steps = run.whole("gradient_accumulation_steps"),
                 examples = batch * gradient_accumulation_steps;
  const uint64_t asked = size_product(examples, size_product(max_length, sizeof(int64_t)));
  if (asked <= machine_memory()) {
    return {};
  }
  return Failure{ZO_INVALID_ARGUMENT, "batch_size x gradient_accumulation_steps",
                 std::to_string(batch) + " x " + std::to_string(gradient_accumulation_steps) +
                     " examples, whose rows take " + bytes_text(asked),
                 "at most the " + bytes_text(machine_memory()) + " of this machine's memory",
                 "Pass a smaller batch_size or gradient_accumulation_steps."};
}

}  // namespace zoexport
