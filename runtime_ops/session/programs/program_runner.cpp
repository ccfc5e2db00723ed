#include "session/programs/program_runner.h"

#include <set>

#include "session/programs/call_inputs.h"

namespace zoexport {
namespace {

Failure unusable(const ProgramSpec& program, const std::string& found, const std::string& expected) {
  return {ZO_BUNDLE_ERROR, "manifest.json, program " + program.name, found, expected,
          "Use the zoexport version that compiled this bundle, or compile it again."};
}

Status check_values(const Manifest& manifest, const ProgramSpec& program) {
  const uint32_t max_labels = manifest.max_labels;
  static const std::set<std::string> inputs = {
      "tokens", "label_positions", "label_tokens", "state", "projected_gradients", "noise", "previous_noise"};
  for (const ValueSpec& value : program.inputs) {
    if (value.role == "weight" && !manifest.weights.empty()) {
      continue;
    }
    if (is_noise(value) && !fits_noise(manifest, value)) {
      return unusable(program, "the input " + value.name + " of another name, dtype or shape",
                      value.role + ".SLOT, float32 (queries, *SLOT)");
    }
    const int32_t scalar = scalar_dtype(value.role);
    if (scalar < 0 && inputs.count(value.role) == 0) {
      return unusable(program, "the input " + value.name + " with the role " + value.role, "a role of docs/bundle.md");
    }
    if (scalar >= 0 && (value.dtype != scalar || !value.has_shape({1}))) {
      return unusable(program, "another dtype or shape of " + value.name, "the one of docs/bundle.md");
    }
    if (value.role == "projected_gradients" &&
        (value.dtype != ZO_FLOAT32 || value.shape.size() != 1 || value.shape[0].dynamic())) {
      return unusable(program, "another dtype or shape of " + value.name, "float32 (q)");
    }
  }
  for (const ValueSpec& value : program.outputs) {
    const bool labels = value.role == "label_logprobs" || value.role == "label_is_argmax";
    if (!labels && value.role != "state") {
      return unusable(program, "the output " + value.name + " with the role " + value.role, "a role of docs/bundle.md");
    }
    if (labels && (value.dtype != ZO_FLOAT32 || value.shape.size() != 2 || value.shape[0].dynamic() ||
                   value.shape[1].max != max_labels)) {
      return unusable(program, "another dtype or shape of " + value.name, "float32 (copies, M)");
    }
  }
  return {};
}

}  // namespace

Result<ProgramRunner> ProgramRunner::create(const Manifest& manifest, const std::string& name, Programs& programs,
                                            FrozenWeights& weights) {
  ProgramRunner runner;
  runner.program_ = manifest.program(name);
  if (runner.program_ == nullptr) {
    return Failure{ZO_BUNDLE_ERROR, "manifest.json", "no program named " + name, "one", "Compile the bundle again."};
  }
  const ProgramSpec& program = *runner.program_;
  ZO_TRY(check_values(manifest, program));
  const Dimension& labels = program.input("label_positions")->shape[0];
  const Dimension& length = program.input("tokens")->shape[1];
  runner.limits_ = {manifest.rows,
                    manifest.seq_len,
                    static_cast<uint32_t>(length.min),
                    manifest.max_labels,
                    static_cast<uint32_t>(labels.min),
                    manifest.lengths};
  runner.copies_ = static_cast<uint32_t>(program.output("label_logprobs")->shape[0].max);
  if (const ValueSpec* gradients = program.input("projected_gradients")) {
    runner.gradients_.resize(static_cast<size_t>(gradients->shape[0].max));
  }
  runner.programs_ = &programs;
  runner.weights_ = &weights;
  return runner;
}

Result<Tensor> ProgramRunner::bind_input(const ValueSpec& value, const Call& call, const Slots& slots,
                                         const StateValues& state) {
  const std::string& role = value.role;
  if (role == "tokens") {
    return make_tensor(value, {limits_.rows, call.length}, call.tokens.data());
  }
  if (role == "label_positions" || role == "label_tokens") {
    return make_tensor(value, {static_cast<int64_t>(entries_)},
                       role == "label_tokens" ? call.label_tokens.data() : call.label_positions.data());
  }
  if (role == "state") {
    const size_t slot = slots.find(value.name);
    return make_tensor(value, slots.spec(slot).shape, state(slot));
  }
  if (role == "weight") {
    return make_tensor(value, sizes_of(value), weights_->data(value.name));
  }
  if (is_noise(value)) {
    return make_tensor(value, sizes_of(value),
                       noise_.values(value, slots.spec(slots.find(noise_slot(value))), scalars_));
  }
  if (role == "projected_gradients") {
    return make_tensor(value, {static_cast<int64_t>(gradients_.size())}, gradients_.data());
  }
  return make_tensor(value, {1}, scalar_value(scalars_, role));
}

Status ProgramRunner::open_weights() {
  std::vector<FrozenWeights::Read> reads;
  for (const ValueSpec& value : program_->inputs) {
    if (value.role == "weight") {
      reads.push_back({&value, value.name, "program " + program_->name});
    }
  }
  if (!reads.empty()) {
    ZO_TRY(weights_->open(reads));
  }
  opened_ = true;
  return {};
}

Result<Tensor> ProgramRunner::bind_output(const ValueSpec& value, Slots& slots, bool next) {
  const auto entries = static_cast<int64_t>(entries_);
  if (value.role == "state") {
    const size_t slot = slots.find(value.name);
    if (next && !slots.trainable(slot)) {
      return unusable(*program_, "an output for the slot " + value.name, "outputs for trainable slots only");
    }
    return make_tensor(value, slots.spec(slot).shape, next ? slots.next(slot) : nullptr);
  }
  std::vector<float>& values = value.role == "label_logprobs" ? logprobs_ : is_argmax_;
  const int64_t rows = value.shape[0].max;
  values.resize(static_cast<size_t>(rows * entries));
  return make_tensor(value, {rows, entries}, values.data());
}

Status ProgramRunner::run(const Call& call, const CallScalars& scalars, Slots& slots, const StateValues& state,
                          bool next) {
  if (!opened_) {
    ZO_TRY(open_weights());
  }
  scalars_ = scalars;
  for (size_t i = 0; i < gradients_.size(); ++i) {
    gradients_[i] = scalars.gradients == nullptr ? 0.0f : (*scalars.gradients)[i];
  }
  entries_ = call.label_tokens.size();
  std::vector<Tensor> inputs;
  for (const ValueSpec& value : program_->inputs) {
    ZO_ASSIGN(bound, bind_input(value, call, slots, state));
    inputs.push_back(std::move(bound));
  }
  std::vector<Tensor> outputs;
  for (const ValueSpec& value : program_->outputs) {
    ZO_ASSIGN(bound, bind_output(value, slots, next));
    outputs.push_back(std::move(bound));
  }
  return programs_->run(*program_, inputs, outputs);
}

}  // namespace zoexport
