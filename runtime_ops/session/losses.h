// What a run minimizes.
#pragma once

#include <cstdint>
#include <string>

#include "zoexport/session.h"

namespace zoexport {

inline constexpr char kLosses[] = "full, choices, dpo or orpo";

// The number of a loss; -1 for another word.
inline int32_t loss_from_text(const std::string& text) {
  return text == "full"      ? ZO_LOSS_FULL
         : text == "choices" ? ZO_LOSS_CHOICES
         : text == "dpo"     ? ZO_LOSS_DPO
         : text == "orpo"    ? ZO_LOSS_ORPO
                             : -1;
}

// Whether a number is that of a loss.
inline bool is_loss(int32_t loss) { return loss >= ZO_LOSS_FULL && loss <= ZO_LOSS_ORPO; }
// Whether a loss is of several candidates of an example and not of the right one alone.
inline bool compares(int32_t loss) { return loss != ZO_LOSS_FULL; }
// Whether a loss is of pairs, and examples must be some.
inline bool of_pairs(int32_t loss) { return loss == ZO_LOSS_DPO || loss == ZO_LOSS_ORPO; }

struct Objective {
  int32_t loss = ZO_LOSS_FULL;
  double beta = 0;  // of a loss of pairs
};

}  // namespace zoexport
