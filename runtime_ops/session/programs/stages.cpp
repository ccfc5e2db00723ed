#include "session/programs/stages.h"

#include <algorithm>

namespace zoexport {

Stages::Stages(const Manifest& manifest, const Slots& slots, Programs& programs, FrozenWeights& weights,
               const std::string& folder)
    : manifest_(manifest), slots_(slots), programs_(programs), weights_(weights), folder_(folder), scratch_(folder) {
  for (const StageSpec& stage : manifest.stages) {
    const ProgramSpec& program = *manifest.program(stage.forward, manifest.lengths.back());
    slot_of_.emplace_back();
    trainable_.emplace_back();
    for (const auto& [local, name] : stage.bind) {
      const size_t slot = slots.find(name);
      if (slot < slots.size()) {
        slot_of_.back()[local] = slot;
      }
    }
    for (const ValueSpec& value : program.inputs) {
      if (value.role == "state" && slots.trainable(slot_of_.back().at(value.name))) {
        trainable_.back().push_back(slot_of_.back().at(value.name));
      }
    }
  }
  hidden_ = static_cast<size_t>(manifest.program(manifest.stages.back().forward, 0)->input("activation")->shape[1].max);
}

CallLimits Stages::limits() const {
  // The manifest's are the labels of one copy; the head takes any number, some at a time.
  const auto labels = std::min<uint64_t>(uint64_t{manifest_.max_labels} * manifest_.copies, UINT32_MAX);
  return {manifest_.rows,    manifest_.seq_len,  manifest_.lengths.front(), static_cast<uint32_t>(labels), 1,
          manifest_.lengths, manifest_.pad_token};
}

size_t Stages::activation_bytes(uint32_t length) const {
  size_t most = 0;
  for (size_t i = 0; i < head(); ++i) {
    size_t bytes = 0;
    for (const ValueSpec& value : manifest_.program(manifest_.stages[i].forward, length)->outputs) {
      bytes += Scratch::padded(make_tensor(value, sizes_of(value), nullptr).bytes);
    }
    most = std::max(most, bytes);
  }
  return most;
}

Status Stages::open_weights() {
  std::vector<FrozenWeights::Read> reads;
  for (const StageSpec& stage : manifest_.stages) {
    for (const std::string& family : {stage.forward, stage.backward}) {
      for (const ProgramSpec& program : manifest_.programs) {
        for (size_t i = 0; !family.empty() && program.family == family && i < program.inputs.size(); ++i) {
          const ValueSpec& value = program.inputs[i];
          if (value.role == "weight") {
            reads.push_back({&value, stage.bind.at(value.name), program.name + " of stage " + stage.name});
          }
        }
      }
    }
  }
  if (!reads.empty()) {
    ZO_TRY(weights_.open(reads));
  }
  opened_ = true;
  return {};
}

Status Stages::run(size_t stage, uint32_t length, const StageValues& values, bool backward) {
  if (!opened_) {
    ZO_TRY(open_weights());
  }
  const StageSpec& spec = manifest_.stages[stage];
  const ProgramSpec& program = *manifest_.program(backward ? spec.backward : spec.forward, length);
  const auto slot = [&](const ValueSpec& value) { return slot_of_[stage].at(value.name); };
  // Tensors of one role that lie one after another.
  const auto following = [](const auto*& place, const ValueSpec& value) {
    Tensor tensor = make_tensor(value, sizes_of(value), place);
    place += Scratch::padded(tensor.bytes);
    return tensor;
  };
  const uint8_t* activations = values.activations;
  const uint8_t* output_gradients = values.output_gradients;
  const uint8_t* next_activations = values.next_activations;
  const uint8_t* input_gradients = values.input_gradients;
  std::vector<Tensor> inputs, outputs;
  for (const ValueSpec& value : program.inputs) {
    const std::string& role = value.role;
    if (role == "activation" || role == "output_gradient") {
      inputs.push_back(following(role == "activation" ? activations : output_gradients, value));
      continue;
    }
    const auto noise = [&] {
      return noise_.values(value, slots_.spec(slots_.find(noise_slot(value))), *values.scalars);
    };
    const void* data = role == "weight"          ? weights_.data(spec.bind.at(value.name))
                       : role == "state"         ? (*values.state)(slot(value))
                       : role == "noise"         ? noise()
                       : scalar_dtype(role) >= 0 ? scalar_value(*values.scalars, role)
                       : role == "tokens"        ? static_cast<const void*>(values.tokens)
                       : role == "label_tokens"  ? static_cast<const void*>(values.label_tokens)
                                                 : static_cast<const void*>(values.label_weights);
    inputs.push_back(make_tensor(value, sizes_of(value), data));
  }
  for (const ValueSpec& value : program.outputs) {
    const std::string& role = value.role;
    if (role == "activation" || role == "input_gradient") {
      outputs.push_back(following(role == "activation" ? next_activations : input_gradients, value));
      continue;
    }
    float* data = role == "state_gradient"   ? values.state_gradient(slot(value))
                  : role == "label_logprobs" ? values.label_logprobs
                                             : values.label_is_argmax;
    outputs.push_back(make_tensor(value, sizes_of(value), data));
  }
  return programs_.run(program, inputs, outputs);
}

}  // namespace zoexport
