// The moments of an update, from the records of a run: the gradients that count in it, and how much each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/zeroth_order.h"
#include "session/manifest/step_plan.h"
#include "session/train/trainer.h"

namespace zoexport {

// The last steps of a history within the rule's horizon, the newest first. `first` is the place of the slot's gradients
// among those of a record, and there are so many queries. The weights of as many steps as there are add up to 1; with
// Adam they also divide a sum of queries, and its square, into a mean. They are computed in double, and rounded once.
// Borrows from the history.
std::vector<kernels::MomentStep> moment_steps(const UpdateRule& rule, const History& history, size_t first,
                                              uint32_t queries);

// The update of these steps at a rate. Borrows from them.
kernels::Moments moments_of(const UpdateRule& rule, const std::vector<kernels::MomentStep>& steps, float learning_rate,
                            uint32_t queries, uint64_t seed);

}  // namespace zoexport
