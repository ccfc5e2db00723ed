// Losses that a run can minimize.
#pragma once

#include <cstdint>
#include <string>

#include "session/result.h"
#include "zoexport/session.h"

namespace zoexport {

// The last two compare pairs of a chosen and a rejected response (docs/formats.md).
enum { ZO_LOSS_FULL = 0, ZO_LOSS_CHOICES = 1, ZO_LOSS_DPO = 2, ZO_LOSS_ORPO = 3 };
// Score of a choice: the sum or the mean of its tokens' log-probabilities.
enum { ZO_CHOICES_SUM = 0, ZO_CHOICES_MEAN = 1 };

// Return the loss of this name; ZO_LOSS_FULL for any other text.
inline int32_t loss_from_text(const std::string& text) {
  return text == "choices" ? ZO_LOSS_CHOICES
         : text == "dpo"   ? ZO_LOSS_DPO
         : text == "orpo"  ? ZO_LOSS_ORPO
                           : ZO_LOSS_FULL;
}

// Return whether a loss compares several candidates of an example instead of using only the right one.
inline bool compares(int32_t loss) { return loss != ZO_LOSS_FULL; }
// Return whether a loss needs pairs, so that each example must be one.
inline bool of_pairs(int32_t loss) { return loss == ZO_LOSS_DPO || loss == ZO_LOSS_ORPO; }

// Refuse packing for encoders (`masked`), whose tokens see the whole sequence, and for losses that compare answers.
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
  double beta = 0;                   // DPO and ORPO only
  int32_t choices = ZO_CHOICES_SUM;  // score of a choice: ZO_CHOICES_*
};

}  // namespace zoexport
