#include "session/train/update_runner.h"

#include <set>

namespace zoexport {
namespace {

// Values are told apart by their names where there is one for each slot, else by their roles.
bool by_slot(const std::string& role) { return role == "state" || role == "previous_noise"; }

std::string text(const std::multiset<std::string>& names) {
  std::string all;
  for (const std::string& name : names) {
    all += (all.empty() ? "" : ", ") + name;
  }
  return all.empty() ? "none" : all;
}

Failure unusable(const std::string& found, const std::string& expected) {
  return {ZO_BUNDLE_ERROR, "manifest.json, program update", found, expected, "Compile the bundle again."};
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

Status check(const Manifest& manifest, const ProgramSpec& program) {
  std::multiset<std::string> slots;
  std::multiset<std::string> inputs = {"projected_gradients", "learning_rate"};
  const bool takes_noise = program.input("previous_noise") != nullptr;
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
    for (const ValueSpec& value : output ? program.outputs : program.inputs) {
      if (!fits(manifest, value)) {
        return unusable("the value " + value.name + " with the role " + value.role,
                        "a role of docs/bundle.md, with its dtype and shape");
      }
      found.insert(by_slot(value.role) ? value.name : value.role);
    }
    const std::multiset<std::string>& expected = output ? slots : inputs;
    if (found != expected) {
      return unusable((output ? "the outputs " : "the inputs ") + text(found), text(expected));
    }
  }
  return {};
}

}  // namespace

Result<UpdateRunner> UpdateRunner::create(const Manifest& manifest, Programs& programs, const SlotUpdates& updates) {
  const ProgramSpec* program = manifest.program("update");
  if (program != nullptr) {
    ZO_TRY(check(manifest, *program));
  }
  return UpdateRunner(program, programs, updates, manifest.queries());
}

Status UpdateRunner::run(const CallScalars& scalars, const StateValues& state, Slots& slots) {
  const std::vector<float>& gradients = scalars.gradients != nullptr ? *scalars.gradients : none_;
  if (program_ == nullptr) {
    const SlotUpdate update{gradients.data(), gradients.size(), scalars.learning_rate, scalars.seed,
                            static_cast<uint32_t>(scalars.step)};
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots.trainable(i) && !updates_.apply(slots.spec(i), update, state(i), slots.next(i))) {
        return Failure{ZO_STATE_ERROR, "step " + std::to_string(scalars.step), "gradients of a step before the first",
                       "none", "Start again in another state folder."};
      }
    }
    return {};
  }
  std::vector<Tensor> inputs, outputs;
  for (const ValueSpec& value : program_->inputs) {
    const void* data = value.role == "state"                 ? state(slots.find(value.name))
                       : value.role == "projected_gradients" ? static_cast<const void*>(gradients.data())
                       : value.role == "previous_noise"
                           ? noise_.values(value, slots.spec(slots.find(noise_slot(value))), scalars)
                           : scalar_value(scalars, value.role);
    inputs.push_back(make_tensor(value, sizes_of(value), data));
  }
  for (const ValueSpec& value : program_->outputs) {
    outputs.push_back(make_tensor(value, sizes_of(value), slots.next(slots.find(value.name))));
  }
  return programs_.run(*program_, inputs, outputs);
}

}  // namespace zoexport
