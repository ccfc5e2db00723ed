// The gradients of an update: one sum for each trainable slot, in a mapped file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "session/programs/stages.h"
#include "session/storage/shared_file.h"

namespace zoexport {

class GradientSums {
 public:
  // `stages` outlives this object.
  explicit GradientSums(const Stages& stages) : stages_(stages) {}

  // Begins an update: all sums are zero.
  Status begin();
  // Return the buffer for a program's gradient of this slot: the sum itself the first time, else a separate buffer.
  float* target(size_t slot);
  // Adds what the program wrote to the sums.
  void add();

  // The sum, of slots().spec(slot).elements floats.
  const float* sum(size_t slot) const;

 private:
  struct Waiting {
    size_t slot;
    const float* values;
  };
  float* at(size_t offset) const { return reinterpret_cast<float*>(file_->data() + offset); }

  const Stages& stages_;
  std::optional<SharedFile> file_;  // the sums, then room for the gradients of one stage
  std::vector<bool> begun_;
  std::vector<Waiting> waiting_;
  size_t used_ = 0;  // bytes of the room
};

}  // namespace zoexport
