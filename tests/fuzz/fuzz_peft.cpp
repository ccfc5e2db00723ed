// An adapter in PEFT's form: it fits the bundle, and its values are finite, or one message says why not. An input is the
// description's length in two bytes, the description, and the safetensors file.
#include <cmath>
#include <set>
#include <vector>

#include "folder.h"
#include "session/adapters/peft_reader.h"

namespace {

using namespace zoexport;

SlotSpec matrix(const char* name, int64_t rows, int64_t columns) {
  SlotSpec spec;
  spec.name = std::string(name) + ".model.layers.0.self_attn.q_proj";
  spec.module = "model.layers.0.self_attn.q_proj";
  spec.shape = {rows, columns};
  spec.elements = static_cast<uint64_t>(rows * columns);
  return spec;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Of a bundle of rank 2 that adapts one module from 3 to 4 features, as tests/fuzz/fuzz_adapters.py has it.
  static const std::vector<SlotSpec> slots = {matrix("lora_A", 3, 2), matrix("lora_B", 2, 4)};
  static const fuzz::Folder folder("peft");
  fuzz::Numbers numbers(data, size);
  size_t described = numbers.byte();
  described = std::min<size_t>(described << 8 | numbers.byte(), numbers.size());
  const std::string config = fuzz::text(numbers.data(), described);
  numbers.skip(described);
  folder.write(kPeftConfig, config);
  folder.write("adapter_model.safetensors", fuzz::text(numbers.data(), numbers.size()));

  const auto own = read_peft_settings(config, kPeftConfig);
  MUST(own.ok() || !own.failure().found.empty());
  std::set<size_t> taken;
  const auto bundle = read_peft_settings(R"({"r": 2, "lora_alpha": 4})", kPeftConfig);
  const Status read = read_peft(folder.path(), *bundle, slots, [&](size_t slot, const float* values) {
    for (size_t i = 0; i < slots[slot].elements; ++i) {
      MUST(std::isfinite(values[i]));
    }
    MUST(taken.insert(slot).second);
    return Status();
  });
  MUST(taken.size() == (read.ok() ? 2u : 0u));
  MUST(read.ok() || (!read.failure().where.empty() && !read.failure().found.empty() && !read.failure().fix.empty()));
  return 0;
}
