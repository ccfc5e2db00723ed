#include "session/state/slots.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace zoexport {
namespace {

// Copy bytes; a slot without values has no memory.
void copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

std::string moment_name(uint32_t moment, const std::string& slot) {
  return "optimizer." + std::to_string(moment) + "." + slot;
}

size_t aligned(size_t offset, size_t element) { return (offset + element - 1) / element * element; }

// Return the alignment of a slot's values: integer weights are as long as a model, and kernels read 64 bytes at a time.
size_t alignment(const SlotSpec& spec) { return spec.integers() ? 64 : dtype_bytes(spec.dtype); }

}  // namespace

Result<const void*> slot_values(const SafeTensors& file, const std::string& name, const SlotSpec& spec,
                                const std::string& path, zo_status code) {
  const TensorBytes* tensor = file.find(name);
  // Copied or read in place, so the bytes must lie on their boundary, as the format recommends.
  const bool fits = tensor != nullptr && tensor->dtype == safetensors_dtype(spec.dtype) &&
                    tensor->shape == spec.shape &&
                    reinterpret_cast<uintptr_t>(tensor->data) % dtype_bytes(spec.dtype) == 0;
  if (!fits) {
    return Failure{code, path, (tensor == nullptr ? "no tensor " : "another dtype, shape or alignment of ") + name,
                   std::string("the ") + dtype_text(spec.dtype) + " value of that slot",
                   "Copy the file again from where it was made."};
  }
  return static_cast<const void*>(tensor->data);
}

Result<Slots> Slots::load(const std::vector<SlotSpec>& specs, const OpenFile& adapter, uint32_t moments) {
  ZO_ASSIGN(file, SafeTensors::of(adapter));
  Slots slots(specs, std::move(file), moments);
  for (const SlotSpec& spec : specs) {
    ZO_ASSIGN(values, slot_values(slots.file_, spec.name, spec, adapter.path(), ZO_BUNDLE_ERROR));
    Value value;
    value.fixed = values;
    if (spec.role == "trainable") {
      value.trainable = true;
      value.offset = aligned(slots.bytes_, alignment(spec));
      slots.bytes_ = value.offset + aligned(spec.bytes(), alignment(spec));
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
      copy(copies.current() + values_[i].offset, current(i), spec(i).bytes());
    }
  }
  copies_.emplace(std::move(copies));
}

const void* Slots::current(size_t index) const {
  const bool in_copy = copies_ && trainable(index);
  return in_copy ? copies_->current() + values_[index].offset : values_[index].fixed;
}

const float* Slots::moment(uint32_t moment, size_t index) const {
  const void* values = copies_->current() + (1 + moment) * bytes_ + values_[index].offset;
  return static_cast<const float*>(values);
}

float* Slots::next_moment(uint32_t moment, size_t index) {
  void* values = copies_->next() + (1 + moment) * bytes_ + values_[index].offset;
  return static_cast<float*>(values);
}

void Slots::clear_moments() { std::fill(copies_->current() + bytes_, copies_->current() + copy_bytes(), 0); }

void Slots::set(size_t index, const void* values) {
  const auto* bytes = static_cast<const uint8_t*>(values);
  if (trainable(index)) {
    copy(mutable_current(index), bytes, spec(index).bytes());
    return;
  }
  Value& value = values_[index];
  value.owned.assign(bytes, bytes + spec(index).bytes());
  value.fixed = value.owned.data();
}

Status Slots::set_from(const SafeTensors& file, SlotKind kind, const std::string& path) {
  // All is found before anything is set.
  std::vector<const void*> found(size(), nullptr);
  std::vector<const void*> moments(size() * moments_, nullptr);
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
      copy(copies_->current() + (1 + m) * bytes_ + offset(i), moments[i * moments_ + m], spec(i).bytes());
    }
  }
  return {};
}

const void* Slots::bundled(size_t index) const { return file_.find(spec(index).name)->data; }

std::vector<TensorToWrite> Slots::to_write(SlotKind kind) const {
  std::vector<TensorToWrite> tensors;
  const auto add = [&](size_t i, std::string name, const void* values) {
    tensors.push_back({std::move(name), spec(i).dtype, spec(i).shape, values, spec(i).bytes()});
  };
  for (size_t i = 0; i < size(); ++i) {
    if (kind == SlotKind::kAll || (kind == SlotKind::kTrainable) == trainable(i)) {
      add(i, spec(i).name, current(i));
    }
    for (uint32_t m = 0; kind == SlotKind::kTrainable && trainable(i) && m < moments_; ++m) {
      add(i, moment_name(m, spec(i).name), moment(m, i));
    }
  }
  return tensors;
}

}  // namespace zoexport
