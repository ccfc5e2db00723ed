// What a run minimizes.
#pragma once

#include <cstdint>
#include <string>

#include "session/result.h"
#include "zoexport/session.h"

namespace zoexport {

// The last two are of pairs of a chosen and a rejected response (docs/preferences.md).
enum { ZO_LOSS_FULL = 0, ZO_LOSS_CHOICES = 1, ZO_LOSS_DPO = 2, ZO_LOSS_ORPO = 3 };
// The score of a choice: the sum of its tokens' log-probabilities, or the mean.
enum { ZO_CHOICES_SUM = 0, ZO_CHOICES_MEAN = 1 };

// The loss of one of its four words.
inline int32_t loss_from_text(const std::string& text) {
  return text == "choices" ? ZO_LOSS_CHOICES
         : text == "dpo"   ? ZO_LOSS_DPO
         : text == "orpo"  ? ZO_LOSS_ORPO
                           : ZO_LOSS_FULL;
}

// Whether a loss is of several candidates of an example and not of the right one alone.
inline bool compares(int32_t loss) { return loss != ZO_LOSS_FULL; }
// Whether a loss is of pairs, and examples must be some.
inline bool of_pairs(int32_t loss) { return loss == ZO_LOSS_DPO || loss == ZO_LOSS_ORPO; }

// Whether examples can share rows. `masked`: of an encoder, in which every token sees the whole row.
inline Status check_pack(bool pack, bool masked, int32_t loss) {
  if (!pack || !(masked || compares(loss))) {
    return {};
  }
  return Failure{ZO_INVALID_ARGUMENT, "pack",
                 masked ? "on, of a masked language model" : "on, with a loss that compares answers",
                 masked ? "a causal language model, whose tokens see what is before them alone"
                        : "loss=full, as answers are not packed",
                 "Leave it out."};
}

struct Objective {
  int32_t loss = ZO_LOSS_FULL;
  double beta = 0;                   // of a loss of pairs
  int32_t choices = ZO_CHOICES_SUM;  // what choices are compared by
};

}  // namespace zoexport
