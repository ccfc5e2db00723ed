// Interface of training methods: a step turns a batch into the slots' next values and a record.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "session/data/batching.h"
#include "session/manifest/manifest.h"
#include "session/programs/programs.h"
#include "session/programs/stages.h"
#include "session/state/slots.h"
#include "session/storage/trajectory.h"

namespace zoexport {

// Records of a run from the first up to the one whose update is to be applied; empty if no update is pending.
struct History {
  const Record* records = nullptr;
  size_t count = 0;

  bool empty() const { return count == 0; }
  const Record& last() const { return records[count - 1]; }
};

// One step of a run; `learning_rate` is what the schedule makes of the run's. `pending` ends with the record whose update is still to
// be applied.
struct StepInput {
  const RunSettings& run;
  uint32_t step;
  float learning_rate;
  History pending;
};

struct StepOutput {
  std::vector<double> losses;  // of each perturbed copy; the one loss of a first-order method
  std::vector<float> gradients;
  double loss = 0;         // their mean
  std::string not_finite;  // what of the update is not; empty: all is finite
};

class Trainer {
 public:
  virtual ~Trainer() = default;
  // Numbers in a record of the trajectory log; 0 for a method whose records do not tell how to repeat their update. The
  // update of a step is then in its next values, and else in those of the step after it.
  virtual uint32_t queries() const = 0;
  // Return whether it supports this kind of difference, central or forward.
  virtual bool takes(const std::string& difference) const { return difference == "central"; }
  // The size of its calls.
  virtual CallLimits limits() const = 0;
  // Reads the slots' current values and writes their next ones; the caller advances them once the record is safe. A loss
  // that is not finite is returned with the next values untouched. `not_finite` is set if the next values are not.
  virtual Result<StepOutput> step(const StepInput& input, const Layout& layout, Slots& slots) = 0;
  // Applies the update of the last record to the values of one slot; `in` may be `out`.
  virtual Status apply(const History& history, uint64_t seed, const SlotSpec& slot, const void* in, void* out) = 0;
  // Why the record's update must not be applied: a number that is not finite, or slots that it could move out of the range of
  // their floats, from their next values if `slots` is given. Empty if it may be applied.
  virtual std::string out_of_range(const Record& record, uint64_t seed, Slots* slots) = 0;
  // By how much a record's update lowers the loss to first order; 0 for a method whose records do not tell.
  virtual double promised(const Record& record) const = 0;
  // Return the last step's gradient of a slot, as long as its values; null if there is none.
  virtual const float* gradient(size_t slot) const = 0;
};

// The trainer of a bundle whose plan probes the loss. All references outlive it.
std::unique_ptr<Trainer> make_zeroth_order(Stages& stages);

// The trainer of a bundle of backward programs and an optimizer.
Result<std::unique_ptr<Trainer>> make_first_order(Stages& stages);

// learning_rate times the mean square of projected gradients: by how much an update along their directions lowers the loss.
double promised_decrease(float learning_rate, const float* gradients, size_t count);

}  // namespace zoexport
