#include "session/programs/call_inputs.h"

#include <algorithm>

#include "rng/variants.h"

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
    rng::normals({scalars.seed, slot.tensor_id, first + i, step}, 0, slot.elements,
                 made.values.data() + i * slot.elements, rng::fastest().normal_blocks);
  }
  made.of = wanted;
  return made.values.data();
}

}  // namespace zoexport
