// The values of a bundle's state slots.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "session/manifest/manifest.h"
#include "session/storage/safetensors.h"
#include "session/storage/two_copies.h"

namespace zoexport {

enum class SlotKind { kAll, kTrainable, kFrozen };

// Values lie in their slot's dtype (slot_values.h). Trainable slots have a current and a next value, so that a step that
// fails leaves the current one alone; other slots are read where they lie in the bundle's mapped file, and so are
// trainable ones before there is room for their copies.
class Slots {
 public:
  // Loads the bundle's initial values from its adapter.safetensors. `moments` values of an optimizer belong to each value
  // of a trainable slot.
  static Result<Slots> load(const std::vector<SlotSpec>& specs, const OpenFile& adapter, uint32_t moments);

  size_t size() const { return specs_->size(); }
  const SlotSpec& spec(size_t index) const { return (*specs_)[index]; }
  bool trainable(size_t index) const { return values_[index].trainable; }
  // Return the index of a name, or size() if it is absent.
  size_t find(const std::string& name) const;

  // Bytes of all trainable slots; slot `index` begins at offset(index) of them.
  size_t trainable_bytes() const { return bytes_; }
  size_t offset(size_t index) const { return values_[index].offset; }
  // Bytes of one copy: the trainable slots, then each moment of them. A slot with moments is float32, as they are.
  size_t copy_bytes() const { return bytes_ * (1 + moments_); }
  uint32_t moments() const { return moments_; }

  // Gives the trainable slots room: 2 x copy_bytes(). `keep`: they take the values that are there, else those they have.
  void hold(TwoCopies copies, bool keep);
  bool held() const { return copies_.has_value(); }
  // Back to the bundle's values, and its moments.
  void let_go() {
    copies_.reset();
    moments_ = all_moments_;
  }
  // Values for reading alone have no moments.
  void drop_moments() { moments_ = 0; }

  const void* current(size_t index) const;
  // Values of trainable slots that are held. A moment's index is below moments().
  void* mutable_current(size_t index) { return copies_->current() + values_[index].offset; }
  void* next(size_t index) { return copies_->next() + values_[index].offset; }
  const float* moment(uint32_t moment, size_t index) const;
  float* next_moment(uint32_t moment, size_t index);
  TwoCopies& copies() { return *copies_; }
  // The next values become the current ones.
  void advance() { copies_->flip(); }

  // Set one slot's current value, for any role; trainable slots are held.
  void set(size_t index, const void* values);
  // Sets the slots that `file` must hold, and of trainable ones the moments unless the kind is kAll; nothing on failure.
  Status set_from(const SafeTensors& file, SlotKind kind, const std::string& path);
  // Sets the current moments to zero.
  void clear_moments();
  // The initial value of a slot as the bundle has it.
  const void* bundled(size_t index) const;

  // Current values for a file: those of all slots, or those of trainable ones with their moments. Borrows from this object.
  std::vector<TensorToWrite> to_write(SlotKind kind) const;

 private:
  struct Value {
    const void* fixed = nullptr;  // where the value lies while no copy holds it
    std::vector<uint8_t> owned;   // target of `fixed` if it is not the bundle's
    bool trainable = false;
    size_t offset = 0;  // within a copy, a multiple of an element
  };
  Slots(const std::vector<SlotSpec>& specs, SafeTensors file, uint32_t moments)
      : specs_(&specs), file_(std::move(file)), all_moments_(moments), moments_(moments) {}

  const std::vector<SlotSpec>* specs_;
  SafeTensors file_;
  uint32_t all_moments_;
  uint32_t moments_;
  size_t bytes_ = 0;
  std::vector<Value> values_;
  std::optional<TwoCopies> copies_;
};

// The values of a tensor with a slot's dtype and shape in a file, or a failure that names both.
Result<const void*> slot_values(const SafeTensors& file, const std::string& name, const SlotSpec& spec,
                                const std::string& path, zo_status code);

}  // namespace zoexport
