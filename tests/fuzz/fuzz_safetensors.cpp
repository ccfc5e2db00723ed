// A safetensors file, and the slots of a bundle or a state in it: what is given lies within the file.
#include <cstring>

#include "fuzz.h"
#include "session/state/slots.h"
#include "session/storage/dtypes.h"
#include "session/storage/safetensors.h"

namespace {

using namespace zoexport;

// Slots of the tensors themselves, so that they fit.
std::vector<SlotSpec> slots_of(const SafeTensors& file) {
  std::vector<SlotSpec> specs;
  for (const auto& [name, tensor] : file.tensors()) {
    for (const int32_t dtype : {ZO_FLOAT32, ZO_FLOAT16, ZO_UINT8, ZO_INT8, ZO_INT32}) {
      if (tensor.dtype == safetensors_dtype(dtype)) {
        SlotSpec spec;
        spec.name = name;
        spec.role = specs.size() % 2 == 0 ? "trainable" : "frozen";
        spec.dtype = dtype;
        spec.shape = tensor.shape;
        spec.elements = tensor.bytes / dtype_bytes(dtype);
        specs.push_back(spec);
      }
    }
  }
  return specs;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::File file("safetensors");
  const std::string& path = file.write(data, size);
  const auto tensors = SafeTensors::open(path, ZO_STATE_ERROR);
  if (!tensors.ok()) {
    return 0;
  }
  uint64_t sum = tensors->data_crc() + tensors->metadata("crc32").size();
  for (const auto& [name, tensor] : tensors->tensors()) {
    MUST(tensor.bytes <= size);
    for (size_t i = 0; i < tensor.bytes; ++i) {
      sum += tensor.data[i];
    }
  }
  static volatile uint64_t read = 0;
  read = read + sum;
  const std::vector<SlotSpec> specs = slots_of(*tensors);
  const auto opened = OpenFile::open(path, ZO_BUNDLE_ERROR);
  MUST(opened.ok());
  auto slots = Slots::load(specs, *opened, 0);
  if (slots.ok() && slots->copy_bytes() < size_t{1} << 20) {
    slots->hold(TwoCopies(slots->copy_bytes()), /*keep=*/false);
    MUST(slots->set_from(*tensors, SlotKind::kAll, path).ok());
    for (size_t i = 0; i < slots->size(); ++i) {
      MUST(specs[i].bytes() == 0 ||
           std::memcmp(slots->current(i), tensors->find(specs[i].name)->data, specs[i].bytes()) == 0);
    }
  }
  return 0;
}
