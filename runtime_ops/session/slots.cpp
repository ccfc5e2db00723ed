#include "session/slots.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace zoexport {
namespace {

std::string moment_name(uint32_t moment, const std::string& slot) {
  return "optimizer." + std::to_string(moment) + "." + slot;
}

}  // namespace

Result<const float*> slot_values(const SafeTensors& file, const std::string& name, const SlotSpec& spec,
                                 const std::string& path, zo_status code) {
  const TensorBytes* tensor = file.find(name);
  // Copied or read in place as floats, so the bytes must lie on their boundary, as the format recommends.
  const bool fits = tensor != nullptr && tensor->dtype == "F32" && tensor->shape == spec.shape &&
                    reinterpret_cast<uintptr_t>(tensor->data) % alignof(float) == 0;
  if (!fits) {
    return Failure{code, path, (tensor == nullptr ? "no tensor " : "another dtype, shape or alignment of ") + name,
                   "the float32 value of that slot", "Copy the file again from where it was made."};
  }
  return reinterpret_cast<const float*>(tensor->data);
}

Result<Slots> Slots::load(const std::vector<SlotSpec>& specs, const std::string& path, uint32_t moments) {
  ZO_ASSIGN(file, SafeTensors::open(path, ZO_BUNDLE_ERROR));
  Slots slots(specs, std::move(file), moments);
  for (const SlotSpec& spec : specs) {
    ZO_ASSIGN(values, slot_values(slots.file_, spec.name, spec, path, ZO_BUNDLE_ERROR));
    Value value;
    value.fixed = values;
    if (spec.role == "trainable") {
      value.trainable = true;
      value.offset = slots.elements_;
      slots.elements_ += spec.elements;
    }
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

void Slots::hold(TwoCopies copies, bool keep) {
  for (size_t i = 0; !keep && i < size(); ++i) {
    if (trainable(i)) {
      std::memcpy(copies.current() + values_[i].offset, current(i), spec(i).elements * sizeof(float));
    }
  }
  copies_.emplace(std::move(copies));
}

const float* Slots::current(size_t index) const {
  const bool in_copy = copies_ && trainable(index);
  return in_copy ? copies_->current() + values_[index].offset : values_[index].fixed;
}

const float* Slots::moment(uint32_t moment, size_t index) const {
  return copies_->current() + (1 + moment) * elements_ + values_[index].offset;
}

float* Slots::next_moment(uint32_t moment, size_t index) {
  return copies_->next() + (1 + moment) * elements_ + values_[index].offset;
}

void Slots::clear_moments() {
  float* current = copies_->current();
  std::fill(current + elements_, current + copy_floats(), 0.0f);
}

void Slots::set(size_t index, const float* values) {
  const size_t elements = spec(index).elements;
  if (trainable(index)) {
    std::memcpy(mutable_current(index), values, elements * sizeof(float));
    return;
  }
  Value& value = values_[index];
  value.owned.assign(values, values + elements);
  value.fixed = value.owned.data();
}

Status Slots::set_from(const SafeTensors& file, SlotKind kind, const std::string& path) {
  // All is found before anything is set.
  std::vector<const float*> found(size(), nullptr);
  std::vector<const float*> moments(size() * moments_, nullptr);
  const bool with_moments = kind == SlotKind::kTrainable;
  for (size_t i = 0; i < size(); ++i) {
    if (kind != SlotKind::kAll && (kind == SlotKind::kTrainable) != trainable(i)) {
      continue;
    }
    ZO_ASSIGN(values, slot_values(file, spec(i).name, spec(i), path, ZO_STATE_ERROR));
    found[i] = values;
    for (uint32_t m = 0; with_moments && m < moments_; ++m) {
      ZO_ASSIGN(moment, slot_values(file, moment_name(m, spec(i).name), spec(i), path, ZO_STATE_ERROR));
      moments[i * moments_ + m] = moment;
    }
  }
  for (size_t i = 0; i < size(); ++i) {
    if (found[i] != nullptr) {
      set(i, found[i]);
    }
    for (uint32_t m = 0; with_moments && trainable(i) && m < moments_; ++m) {
      std::memcpy(copies_->current() + (1 + m) * elements_ + offset(i), moments[i * moments_ + m],
                  spec(i).elements * sizeof(float));
    }
  }
  return {};
}

const float* Slots::bundled(size_t index) const {
  return reinterpret_cast<const float*>(file_.find(spec(index).name)->data);
}

std::vector<TensorToWrite> Slots::to_write(SlotKind kind) const {
  std::vector<TensorToWrite> tensors;
  for (size_t i = 0; i < size(); ++i) {
    if (kind == SlotKind::kAll || (kind == SlotKind::kTrainable) == trainable(i)) {
      tensors.push_back({spec(i).name, spec(i).shape, current(i), spec(i).elements});
    }
    for (uint32_t m = 0; kind == SlotKind::kTrainable && trainable(i) && m < moments_; ++m) {
      tensors.push_back({moment_name(m, spec(i).name), spec(i).shape, moment(m, i), spec(i).elements});
    }
  }
  return tensors;
}

}  // namespace zoexport
