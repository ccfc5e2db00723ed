#include "session/programs/stages.h"

#include <algorithm>
#include <set>

#include "session/manifest/roles.h"

namespace zoexport {
namespace {

// Return the bytes of the values of a role, which lie one after another.
size_t bytes_of(const std::vector<ValueSpec>& values, const char* role) {
  size_t bytes = 0;
  for (const ValueSpec& value : values) {
    bytes += value.role == role ? Scratch::padded(make_tensor(value, sizes_of(value), nullptr).bytes) : 0;
  }
  return bytes;
}

}  // namespace

Stages::Stages(const Manifest& manifest, const Slots& slots, Programs& programs, FrozenWeights& weights,
               const std::string& folder)
    : manifest_(manifest),
      slots_(slots),
      programs_(programs),
      weights_(weights),
      folder_(folder),
      scratch_(folder),
      noise_(manifest.step.noise),
      dropout_(manifest.dropout),
      nothing_pending_(manifest.queries(), 0.0f),
      update_(manifest.whole() ? nullptr : manifest.program("update")),
      prefix_(*this) {
  for (const StageSpec& stage : manifest.stages) {
    const ProgramSpec& program = *manifest.program(stage.forward, manifest.max_length);
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
  slot_of_.emplace_back();
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    slot_of_.back()[slots.spec(slot).name] = slot;
  }
  const ValueSpec* taken = manifest.program(manifest.stages.back().forward, manifest.max_length)->input("activation");
  hidden_ = taken == nullptr ? 0 : static_cast<size_t>(taken->shape[1].max);
}

CallLimits Stages::limits(Pass pass) const {
  CallLimits limits{manifest_.rows,    manifest_.max_length, 0, manifest_.max_labels, 1,
                    manifest_.lengths, manifest_.pad_token};
  if (manifest_.whole()) {
    const ProgramSpec& program = *manifest_.program(manifest_.stages[0].family(pass), manifest_.max_length);
    limits.min_length = static_cast<uint32_t>(program.input("tokens")->shape[1].min);
    limits.min_labels = static_cast<uint32_t>(program.input("label_positions")->shape[0].min);
  } else {
    // The manifest's are the labels of one copy; the head takes any number, some at a time.
    limits.min_length = manifest_.lengths.front();
    limits.max_labels =
        static_cast<uint32_t>(std::min<uint64_t>(uint64_t{manifest_.max_labels} * manifest_.copies, UINT32_MAX));
  }
  return limits;
}

size_t Stages::activation_bytes(uint32_t length) const {
  size_t most = 0;
  for (size_t i = 0; i < head(); ++i) {
    most = std::max(most, bytes_of(manifest_.program(manifest_.stages[i].forward, length)->outputs, "activation"));
  }
  return most;
}

size_t Stages::saved_bytes(size_t stage, uint32_t length) const {
  return bytes_of(manifest_.program(manifest_.stages[stage].saving, length)->outputs, "saved");
}

Status Stages::open_weights() {
  std::vector<FrozenWeights::Read> reads;
  for (const StageSpec& stage : manifest_.stages) {
    for (const std::string& family :
         std::set<std::string>{stage.forward, stage.backward, stage.evaluate, stage.saving, stage.from_saved}) {
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

const void* Stages::input(size_t stage, const ValueSpec& value, const StageValues& values) {
  const std::string& role = value.role;
  if (role == "weight") {
    return weights_.data(manifest_.stages[stage].bind.at(value.name));
  }
  if (role == "state") {
    return (*values.state)(slot_of_[stage].at(value.name));
  }
  if (is_noise(value)) {
    return noise_.values(value, slots_.spec(slots_.find(noise_slot(value))), *values.scalars);
  }
  if (is_dropout(value)) {
    return dropout_.values(value, slots_.spec(slot_of_[stage].at(dropout_slot(value))), values.scalars,
                           values.examples);
  }
  if (role == "projected_gradients") {
    const std::vector<float>* gradients = values.scalars->gradients;
    return (gradients == nullptr ? nothing_pending_ : *gradients).data();
  }
  return scalar_dtype(role) >= 0     ? scalar_value(*values.scalars, role)
         : role == "tokens"          ? static_cast<const void*>(values.tokens)
         : role == "label_positions" ? static_cast<const void*>(values.label_positions)
         : role == "label_tokens"    ? static_cast<const void*>(values.label_tokens)
                                     : static_cast<const void*>(values.label_weights);
}

Status Stages::run(size_t stage, Pass pass, uint32_t length, const StageValues& values) {
  if (!opened_) {
    ZO_TRY(open_weights());
  }
  return run(stage, *manifest_.program(manifest_.stages[stage].family(pass), length), length, values);
}

Status Stages::update(const StageValues& values) { return run(count(), *update_, 0, values); }

Status Stages::run(size_t stage, const ProgramSpec& program, uint32_t length, const StageValues& values) {
  // A size that is a range is that of the call's rows or of its label entries.
  const auto tensor = [&](const ValueSpec& value, const void* data) {
    std::vector<int64_t> sizes = sizes_of(value);
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (value.shape[i].dynamic()) {
        sizes[i] = value.role == "tokens" ? int64_t{length} : static_cast<int64_t>(values.entries);
      }
    }
    return make_tensor(value, std::move(sizes), data);
  };
  // Tensors of one role that lie one after another.
  const auto following = [](const auto*& place, const ValueSpec& value) {
    Tensor next = make_tensor(value, sizes_of(value), place);
    place += Scratch::padded(next.bytes);
    return next;
  };
  const uint8_t* activations = values.activations;
  const uint8_t* output_gradients = values.output_gradients;
  const uint8_t* saved = values.saved;
  const uint8_t* next_activations = values.next_activations;
  const uint8_t* input_gradients = values.input_gradients;
  std::vector<Tensor> inputs, outputs;
  inputs.reserve(program.inputs.size());
  outputs.reserve(program.outputs.size());
  for (const ValueSpec& value : program.inputs) {
    inputs.push_back(value.role == "activation"        ? following(activations, value)
                     : value.role == "output_gradient" ? following(output_gradients, value)
                     : value.role == "saved"           ? following(saved, value)
                                                       : tensor(value, input(stage, value, values)));
  }
  for (const ValueSpec& value : program.outputs) {
    const std::string& role = value.role;
    if (role == "activation" || role == "input_gradient" || role == "saved") {
      const uint8_t*& place = role == "activation" ? next_activations : role == "saved" ? saved : input_gradients;
      outputs.push_back(following(place, value));
      continue;
    }
    const auto slot = [&] { return slot_of_[stage].at(value.name); };
    const auto next = [&] { return values.next_state == nullptr ? nullptr : values.next_state->next(slot()); };
    outputs.push_back(tensor(value, role == "state"            ? next()
                                    : role == "state_gradient" ? static_cast<void*>(values.state_gradient(slot()))
                                    : role == "label_logprobs" ? static_cast<void*>(values.label_logprobs)
                                                               : static_cast<void*>(values.label_is_argmax)));
  }
  return programs_.run(program, inputs, outputs);
}

}  // namespace zoexport
