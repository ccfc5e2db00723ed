// The values of a bundle's state slots.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "session/manifest.h"
#include "session/safetensors.h"

namespace zoexport {

// Trainable slots have a current and a next value, so that a step that fails leaves the current one alone; other slots
// are read where they lie in the bundle's mapped file.
class Slots {
 public:
  // Loads the bundle's initial values; `path` is its adapter.safetensors.
  static Result<Slots> load(const std::vector<SlotSpec>& specs, const std::string& path);

  size_t size() const { return specs_->size(); }
  const SlotSpec& spec(size_t index) const { return (*specs_)[index]; }
  bool trainable(size_t index) const { return !values_[index].next.empty(); }
  // The index of a name, or size() where there is none.
  size_t find(const std::string& name) const;

  const float* current(size_t index) const { return values_[index].current; }
  float* mutable_current(size_t index) { return values_[index].owned.data(); }  // trainable slots only
  float* next(size_t index) { return values_[index].next.data(); }              // trainable slots only
  // The next values become the current ones.
  void advance();

  // Sets one slot's current value, whatever its role.
  void set(size_t index, const float* values);
  // Sets every slot that `file` holds; `trainable_only` ignores the others, and misses are failures.
  Status set_from(const SafeTensors& file, bool trainable_only, const std::string& path);
  // The initial value of a slot as the bundle has it.
  const float* bundled(size_t index) const;

  // Current values for a file: of trainable slots, or of all. Borrows from this object.
  std::vector<TensorToWrite> to_write(bool trainable_only) const;

 private:
  struct Value {
    const float* current = nullptr;
    std::vector<float> owned;  // empty where `current` points into the file
    std::vector<float> next;
  };
  Slots(const std::vector<SlotSpec>& specs, SafeTensors file) : specs_(&specs), file_(std::move(file)) {}

  const std::vector<SlotSpec>* specs_;
  SafeTensors file_;
  std::vector<Value> values_;
};

// The fp32 values of a slot in a file, or a failure that names both.
Result<const float*> slot_values(const SafeTensors& file, const SlotSpec& spec, const std::string& path,
                                 zo_status code);

}  // namespace zoexport
