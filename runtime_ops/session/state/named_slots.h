// Named values of slots, in addition to the run's: an adapter that was loaded to generate with.
#pragma once

#include <string>
#include <vector>

#include "session/state/slots.h"
#include "session/storage/scratch.h"

namespace zoexport {

// They lie in a mapped file without a name, so that they are no anonymous memory.
class NamedSlots {
 public:
  // The file is made in `folder` (storage/scratch.h). Both outlive this object.
  NamedSlots(const Slots& slots, const std::string& folder) : slots_(slots), memory_(folder) {}

  // Return whether a slot can have a value here: trainable slots and their companions, but no integer tables.
  static bool takes(const Slots& slots, size_t slot) { return slots.trainable(slot) || !slots.spec(slot).integers(); }

  // Gives a slot that can have one its value, in the slot's dtype.
  Status set(size_t slot, const void* values);
  // Return a slot's value; the bundle's if none was given.
  const void* value(size_t slot) const {
    return given_.empty() || !given_[slot] ? slots_.bundled(slot) : memory_.data() + offsets_[slot];
  }

 private:
  const Slots& slots_;
  Scratch memory_;
  std::vector<size_t> offsets_;
  std::vector<bool> given_;
};

}  // namespace zoexport
