#include "session/slots.h"

#include <cstring>
#include <utility>

namespace zoexport {

Result<const float*> slot_values(const SafeTensors& file, const SlotSpec& spec, const std::string& path,
                                 zo_status code) {
  const TensorBytes* tensor = file.find(spec.name);
  // Copied or read in place as floats, so the bytes must lie on their boundary, as the format recommends.
  const bool fits = tensor != nullptr && tensor->dtype == "F32" && tensor->shape == spec.shape &&
                    reinterpret_cast<uintptr_t>(tensor->data) % alignof(float) == 0;
  if (!fits) {
    return Failure{code, path, (tensor == nullptr ? "no tensor " : "another dtype, shape or alignment of ") + spec.name,
                   "the float32 value of that slot", "Copy the file again from where it was made."};
  }
  return reinterpret_cast<const float*>(tensor->data);
}

Result<Slots> Slots::load(const std::vector<SlotSpec>& specs, const std::string& path) {
  ZO_ASSIGN(file, SafeTensors::open(path, ZO_BUNDLE_ERROR));
  Slots slots(specs, std::move(file));
  for (const SlotSpec& spec : specs) {
    ZO_ASSIGN(values, slot_values(slots.file_, spec, path, ZO_BUNDLE_ERROR));
    Value value;
    if (spec.role == "trainable") {
      value.owned.assign(values, values + spec.elements);
      value.next.resize(spec.elements);
      values = value.owned.data();
    }
    value.current = values;
    slots.values_.push_back(std::move(value));
  }
  return slots;
}

size_t Slots::find(const std::string& name) const {
  size_t index = 0;
  while (index < size() && spec(index).name != name) {
    ++index;
  }
  return index;
}

void Slots::advance() {
  for (Value& value : values_) {
    if (!value.next.empty()) {
      std::swap(value.owned, value.next);
      value.current = value.owned.data();
    }
  }
}

void Slots::set(size_t index, const float* values) {
  Value& value = values_[index];
  value.owned.resize(spec(index).elements);
  std::memcpy(value.owned.data(), values, value.owned.size() * sizeof(float));
  value.current = value.owned.data();
}

Status Slots::set_from(const SafeTensors& file, bool trainable_only, const std::string& path) {
  std::vector<const float*> found(size(), nullptr);
  for (size_t i = 0; i < size(); ++i) {
    if (trainable(i) || !trainable_only) {
      ZO_ASSIGN(values, slot_values(file, spec(i), path, ZO_STATE_ERROR));
      found[i] = values;
    }
  }
  for (size_t i = 0; i < size(); ++i) {
    if (found[i] != nullptr) {
      set(i, found[i]);
    }
  }
  return {};
}

const float* Slots::bundled(size_t index) const {
  return reinterpret_cast<const float*>(file_.find(spec(index).name)->data);
}

std::vector<TensorToWrite> Slots::to_write(bool trainable_only) const {
  std::vector<TensorToWrite> tensors;
  for (size_t i = 0; i < size(); ++i) {
    if (trainable(i) || !trainable_only) {
      tensors.push_back({spec(i).name, spec(i).shape, current(i), spec(i).elements});
    }
  }
  return tensors;
}

}  // namespace zoexport
