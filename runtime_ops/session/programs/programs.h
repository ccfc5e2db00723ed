// The programs of a session: each is checked and loaded before its first call, and its cost is counted.
#pragma once

#include <vector>

#include "engines/engine.h"
#include "session/manifest/manifest.h"

namespace zoexport {

// Cost of a program so far.
struct ProgramCost {
  const ProgramSpec* program = nullptr;
  uint64_t calls = 0;
  double seconds = 0;       // in the engine
  double load_seconds = 0;  // checking its file and loading it
};

class Programs {
 public:
  // The programs of a manifest; they outlive this object, as the engine does.
  Programs(const std::vector<ProgramSpec>& programs, Engine& engine);

  // Runs one of them (see Engine::run).
  Status run(const ProgramSpec& program, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs);

  Engine& engine() { return engine_; }

  // Costs of all programs, in their order.
  const std::vector<ProgramCost>& costs() const { return costs_; }

 private:
  const std::vector<ProgramSpec>& programs_;
  Engine& engine_;
  std::vector<ProgramCost> costs_;
  std::vector<bool> loaded_;
};

// The shape of a value, at the most of a size that is a range.
std::vector<int64_t> sizes_of(const ValueSpec& value);

// A tensor of a program's value; `data` (may be null for an output) is borrowed.
Tensor make_tensor(const ValueSpec& value, std::vector<int64_t> shape, const void* data);

}  // namespace zoexport
