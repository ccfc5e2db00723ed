// What differs between methods: how a step turns a batch into the slots' next values and a record.
#pragma once

#include <memory>
#include <vector>

#include "session/batching.h"
#include "session/manifest.h"
#include "session/program_runner.h"
#include "session/slots.h"
#include "session/trajectory.h"

namespace zoexport {

// One step's settings; `pending` is the record whose update is still to be applied, or null.
struct StepInput {
  uint64_t seed;
  uint32_t step;
  float lr;
  float eps;
  int32_t loss;
  const Record* pending;
};

struct StepOutput {
  std::vector<double> losses;  // of each perturbed copy; the one loss of a first-order method
  std::vector<float> gradients;
  double loss = 0;  // their mean
};

class Trainer {
 public:
  virtual ~Trainer() = default;
  // Numbers in a record of the trajectory log.
  virtual uint32_t queries() const = 0;
  // The size of its calls.
  virtual CallLimits limits() const = 0;
  // What it runs.
  virtual std::vector<const ProgramRunner*> programs() const = 0;
  // Reads the slots' current values and writes their next ones; the caller advances them once the record is safe.
  virtual Result<StepOutput> step(const StepInput& input, const Layout& layout, Slots& slots) = 0;
  // Applies a record's update to one slot of `elements` values; `in` may be `out`.
  virtual Status apply(const Record& record, uint64_t seed, const SlotSpec& slot, const float* in, float* out) = 0;
};

// The trainer of a bundle's method, chosen by the roles of its train program.
Result<std::unique_ptr<Trainer>> make_trainer(const Manifest& manifest, ProgramRunner train);

}  // namespace zoexport
