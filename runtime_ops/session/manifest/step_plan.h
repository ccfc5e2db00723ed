// Plan for estimating the loss's slopes in a step: the manifest's member `step` (docs/formats.md).
//
// The stages are cut into groups, and each group has a level. A level moves the slots of its group along fresh directions;
// a probe of it is one side of a direction, or no move at all. Levels are nested: for every probe of one, the next level
// goes through all of its own. A loss is that of one probe of the last level, under the probes outside it. SPSA, MeZO and
// P-RGE have one level; FedSPZO (3.2.2, equation 9) has two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rng/variants.h"

namespace zoexport {

struct ProbeLevel {
  size_t begin = 0;         // the first stage of its group, which ends where the next one's begins
  uint32_t directions = 0;  // for each probe of the level outside it
  bool forward = false;     // differences to one probe without a move, and not to the other side

  // For each probe of the level outside it: +, -, +, - ...; or none, +, + ...
  uint32_t probes() const { return forward ? directions + 1 : 2 * directions; }
};

// Number of perturbed copies of the model that are computed at once.
enum class Copies {
  kOne,    // one after another
  kStage,  // all of them pass a stage before the next one
  kCall    // all of them are in one call of programs that perturb
};

// Divisor of a difference of two losses.
enum class Divisor {
  kDistance,  // how far apart their probes are: 2 eps, or eps with forward differences
  kDeviation  // the standard deviation of the losses of all moves (FZOO); of one level with forward differences
};

// Kind of update, by the quantity that moves the values.
enum class UpdateKind {
  kSgd,       // the gradient of its step
  kMomentum,  // an average of the last steps' gradients
  kAdam,      // that average, over the root of the average of their squares
  kMuon       // its orthogonal factor, of slots that are matrices
};

// Rule for applying the gradients of a step (docs/methods.md).
struct UpdateRule {
  UpdateKind kind = UpdateKind::kSgd;
  double beta1 = 0;      // by how much a gradient counts less for each step that it is old
  double beta2 = 0;      // and its square
  uint32_t horizon = 1;  // steps whose gradients count
};

// Direction and side of a level's probe.
struct ProbeMove {
  uint32_t query = 0;  // the direction's number among all of the level in a step
  float side = 0;      // 1, -1, or 0 without a move
};

struct StepPlan {
  std::vector<ProbeLevel> levels;  // none where gradients are computed
  Copies copies = Copies::kOne;
  rng::Noise noise = rng::Noise::kNormal;
  Divisor divisor = Divisor::kDistance;
  UpdateRule update;

  bool probes_loss() const { return !levels.empty(); }
  // Return the number of times that a level runs all of its probes in a step.
  uint32_t times(size_t level) const;
  // Losses of a step.
  uint32_t evaluations() const { return times(levels.size()); }
  // Copies of the model that are computed at once.
  uint32_t together() const { return copies == Copies::kOne ? 1 : evaluations(); }
  // Directions of a level in a step; each gives a projected gradient.
  uint32_t directions(size_t level) const { return times(level) * levels[level].directions; }
  // Projected gradients of a step, those of the first level first; and where those of a level begin.
  uint32_t scalars() const { return first_scalar(levels.size()); }
  uint32_t first_scalar(size_t level) const;
  // Return the direction and side of probe number `probe` of a level, in the level's run number `time` of a step.
  ProbeMove move(size_t level, uint32_t time, uint32_t probe) const;
  // The projected gradients of a step: losses (evaluations) of probes of size `eps`, in their order. All are 0 where the
  // losses' deviation, which they are to be divided by, is 0.
  std::vector<float> slopes(const std::vector<double>& losses, double eps) const;
  // The level to whose group a stage belongs.
  size_t level_of(size_t stage) const;
};

// The words of the manifest: one, stage, call; normal, rademacher; distance, deviation; momentum, adam. False for another
// one.
bool copies_from_text(const std::string& text, Copies& copies);
bool noise_from_text(const std::string& text, rng::Noise& noise);
bool divisor_from_text(const std::string& text, Divisor& divisor);
bool update_from_text(const std::string& text, UpdateKind& kind);

}  // namespace zoexport
