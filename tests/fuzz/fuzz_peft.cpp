// An adapter in PEFT's form: it fits the bundle, and its values are finite, or one message says why not. An input is the
// description's length in two bytes, the description, and the safetensors file.
#include <cmath>
#include <set>

#include "folder.h"
#include "session/adapters/peft_reader.h"

namespace {

using namespace zoexport;

// The slots of a bundle of rank 2 that adapts one module from 3 to 4 features, as tests/fuzz/fuzz_adapters.py has them.
class Bundle {
 public:
  Bundle() : file_("peft-bundle") {
    std::string header = "{";
    size_t begin = 0;
    for (const SlotSpec& spec : specs_) {
      const size_t end = begin + spec.bytes();
      header += (begin == 0 ? "\"" : ",\"") + spec.name + R"(":{"dtype":"F32","shape":[)" +
                std::to_string(spec.shape[0]) + "," + std::to_string(spec.shape[1]) + R"(],"data_offsets":[)" +
                std::to_string(begin) + "," + std::to_string(end) + "]}";
      begin = end;
    }
    header += "}";
    const uint64_t length = header.size();
    std::string content(reinterpret_cast<const char*>(&length), sizeof(length));
    content += header + std::string(begin, '\0');
    const auto opened =
        OpenFile::open(file_.write(reinterpret_cast<const uint8_t*>(content.data()), content.size()), ZO_BUNDLE_ERROR);
    MUST(opened.ok());
    auto slots = Slots::load(specs_, *opened, 0);
    MUST(slots.ok());
    slots_.emplace(std::move(*slots));
  }
  const Slots& slots() const { return *slots_; }

 private:
  static SlotSpec matrix(const char* name, int64_t rows, int64_t columns) {
    SlotSpec spec;
    spec.name = std::string(name) + ".model.layers.0.self_attn.q_proj";
    spec.role = "trainable";
    spec.module = "model.layers.0.self_attn.q_proj";
    spec.shape = {rows, columns};
    spec.elements = static_cast<uint64_t>(rows * columns);
    return spec;
  }

  fuzz::File file_;
  std::vector<SlotSpec> specs_ = {matrix("lora_A", 3, 2), matrix("lora_B", 2, 4)};
  std::optional<Slots> slots_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Bundle bundle;
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
  const Status read =
      read_peft(folder.path(), {2, 4, ""}, bundle.slots(), {0, 1}, [&](size_t slot, const float* values) {
        for (size_t i = 0; i < bundle.slots().spec(slot).elements; ++i) {
          MUST(std::isfinite(values[i]));
        }
        MUST(taken.insert(slot).second);
        return Status();
      });
  MUST(taken.size() == (read.ok() ? 2u : 0u));
  MUST(read.ok() || (!read.failure().where.empty() && !read.failure().found.empty() && !read.failure().fix.empty()));
  return 0;
}
