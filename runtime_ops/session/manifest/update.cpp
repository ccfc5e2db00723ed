#include "session/manifest/update.h"

#include <set>

#include "session/manifest/roles.h"

namespace zoexport {
namespace {

// Return whether there is a value of this role for each slot, identified by its name; others are identified by role.
bool by_slot(const std::string& role) { return role == "state" || role == "previous_noise"; }

std::string text(const std::multiset<std::string>& names) {
  std::string all;
  for (const std::string& name : names) {
    all += (all.empty() ? "" : ", ") + name;
  }
  return all.empty() ? "none" : all;
}

bool fits(const Manifest& manifest, const ValueSpec& value) {
  for (const SlotSpec& slot : manifest.slots) {
    if (value.role == "state" && value.name == slot.name) {
      return value.dtype == slot.dtype && value.has_shape(slot.shape);
    }
  }
  if (value.role == "previous_noise") {
    return fits_noise(manifest, value);
  }
  if (value.role == "projected_gradients") {
    return value.dtype == ZO_FLOAT32 && value.has_shape({int64_t{manifest.queries()}});
  }
  return value.dtype == scalar_dtype(value.role) && value.has_shape({1});
}

}  // namespace

void check_update(const Manifest& manifest, JsonProblems& problems) {
  const ProgramSpec* program = manifest.program("update");
  if (program == nullptr || manifest.whole() || !manifest.step.probes_loss()) {
    return;
  }
  std::multiset<std::string> slots;
  std::multiset<std::string> inputs = {"projected_gradients", "learning_rate"};
  const bool takes_noise = program->input("previous_noise") != nullptr;
  if (!takes_noise) {
    inputs.insert({"seed", "step"});
  }
  for (const SlotSpec& slot : manifest.slots) {
    if (slot.role == "trainable") {
      slots.insert(slot.name);
      if (takes_noise) {
        inputs.insert("previous_noise." + slot.name);
      }
    }
  }
  inputs.insert(slots.begin(), slots.end());
  for (const bool output : {false, true}) {
    std::multiset<std::string> found;
    for (const ValueSpec& value : output ? program->outputs : program->inputs) {
      if (!fits(manifest, value)) {
        problems.add("program update", "the value " + value.name + " with the role " + value.role,
                     "a role of docs/formats.md, with its dtype and shape");
      }
      found.insert(by_slot(value.role) ? value.name : value.role);
    }
    const std::multiset<std::string>& expected = output ? slots : inputs;
    if (found != expected) {
      problems.add("program update", (output ? "the outputs " : "the inputs ") + text(found), text(expected));
    }
  }
}

}  // namespace zoexport
