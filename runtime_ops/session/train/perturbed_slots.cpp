#include "session/train/perturbed_slots.h"

#include "kernels/zeroth_order.h"
#include "session/train/slot_updates.h"

namespace zoexport {

Result<StateValues> PerturbedSlots::make(const std::vector<size_t>& moved, const Direction& direction,
                                         const StateValues& state) {
  std::vector<size_t> offsets;
  size_t total = 0;
  for (const size_t slot : moved) {
    offsets.push_back(total);
    total += Scratch::padded(slots_.spec(slot).bytes());
  }
  if (total == 0) {
    return state;
  }
  ZO_TRY(scratch_.reserve(total));
  for (size_t i = 0; i < moved.size(); ++i) {
    const SlotSpec& spec = slots_.spec(moved[i]);
    const auto* master = static_cast<const float*>(state(moved[i]));
    auto* out = reinterpret_cast<float*>(scratch_.data() + offsets[i]);
    parallel_pieces(engine_, spec.elements, [&](size_t begin, size_t end) {
      kernels::zo_perturb_one(master + begin, end - begin, direction.distance, direction.seed, direction.step,
                              direction.query, spec.tensor_id, out + begin, blocks_, begin);
    });
  }
  return StateValues([this, &moved, offsets, &state](size_t slot) -> const void* {
    for (size_t i = 0; i < moved.size(); ++i) {
      if (moved[i] == slot) {
        return scratch_.data() + offsets[i];
      }
    }
    return state(slot);
  });
}

}  // namespace zoexport
