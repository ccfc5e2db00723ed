#include "session/state/named_slots.h"

#include <cstring>

namespace zoexport {

Status NamedSlots::set(size_t slot, const void* values) {
  if (given_.empty()) {
    size_t bytes = 0;
    offsets_.clear();
    for (size_t i = 0; i < slots_.size(); ++i) {
      offsets_.push_back(bytes);
      bytes += takes(slots_, i) ? Scratch::padded(slots_.spec(i).bytes()) : 0;
    }
    ZO_TRY(memory_.reserve(bytes));
    given_.resize(slots_.size());
  }
  std::memcpy(memory_.data() + offsets_[slot], values, slots_.spec(slot).bytes());
  given_[slot] = true;
  return {};
}

}  // namespace zoexport
