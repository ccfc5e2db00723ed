#include "session/programs/call_inputs.h"

#include <algorithm>

namespace zoexport {

const void* scalar_value(const CallScalars& scalars, const std::string& role) {
  return role == "seed"            ? static_cast<const void*>(&scalars.seed)
         : role == "step"          ? static_cast<const void*>(&scalars.step)
         : role == "query"         ? static_cast<const void*>(&scalars.query)
         : role == "sign"          ? static_cast<const void*>(&scalars.sign)
         : role == "learning_rate" ? static_cast<const void*>(&scalars.learning_rate)
                                   : static_cast<const void*>(&scalars.epsilon);
}

const float* NoiseInputs::values(const ValueSpec& value, const SlotSpec& slot, const CallScalars& scalars) {
  const bool previous = value.role == "previous_noise";
  const auto queries = static_cast<uint32_t>(value.shape[0].max);
  const auto* gradients = scalars.gradients;
  const bool pending =
      gradients != nullptr && std::any_of(gradients->begin(), gradients->end(), [](float g) { return g != 0.0f; });
  Made& made = made_[value.name];
  made.values.resize(queries * slot.elements);
  if (!(previous ? pending : scalars.epsilon != 0.0f)) {
    if (made.of) {
      std::fill(made.values.begin(), made.values.end(), 0.0f);
      made.of.reset();
    }
    return made.values.data();
  }
  const auto step = static_cast<uint32_t>(scalars.step - (previous ? 1 : 0));
  const auto first = !previous && queries == 1 ? static_cast<uint32_t>(scalars.query) : 0;
  const auto wanted = std::make_tuple(scalars.seed, step, first);
  if (made.of == wanted) {
    return made.values.data();
  }
  for (uint32_t i = 0; i < queries; ++i) {
    rng::fill({scalars.seed, slot.tensor_id, first + i, step}, 0, slot.elements, made.values.data() + i * slot.elements,
              blocks_);
  }
  made.of = wanted;
  return made.values.data();
}

const float* DropoutInputs::values(const ValueSpec& value, const SlotSpec& slot, const CallScalars* scalars,
                                   const std::vector<uint32_t>* examples) {
  const auto rows = static_cast<size_t>(value.shape[0].max);
  const auto elements = static_cast<size_t>(value.shape[1].max * value.shape[2].max);
  const bool drops = scalars != nullptr && scalars->drops && examples != nullptr && share_ > 0;
  const size_t drawn = drops ? std::min(rows, examples->size()) : 0;
  Made& made = made_[value.name];
  if (made.ones && drawn == 0 && made.values.size() == rows * elements) {
    return made.values.data();
  }
  made.values.assign(rows * elements, 1.0f);
  made.ones = drawn == 0;
  for (size_t row = 0; row < drawn; ++row) {
    const rng::Stream stream = {scalars->seed, slot.tensor_id | rng::kDropout, (*examples)[row],
                                static_cast<uint32_t>(scalars->step)};
    rng::kept(stream, 0, elements, share_, made.values.data() + row * elements);
  }
  return made.values.data();
}

}  // namespace zoexport
