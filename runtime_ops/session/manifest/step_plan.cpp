#include "session/manifest/step_plan.h"

#include <cmath>
#include <numeric>

namespace zoexport {
namespace {

// Return the sample standard deviation of `count` >= 2 numbers, from their distances to the first: it is exactly 0 if
// all are equal, regardless of rounding in the mean.
double deviation(const double* of, size_t count) {
  std::vector<double> from_first(of, of + count);
  for (double& value : from_first) {
    value -= of[0];
  }
  const double mean = std::accumulate(from_first.begin(), from_first.end(), 0.0) / static_cast<double>(count);
  double squares = 0;
  for (const double value : from_first) {
    squares += (value - mean) * (value - mean);
  }
  return std::sqrt(squares / static_cast<double>(count - 1));
}

// Forward differences of losses, that of no move first, over the deviation of the others (FZOO).
std::vector<float> normalized(const std::vector<double>& losses) {
  const double sigma = deviation(losses.data() + 1, losses.size() - 1);
  std::vector<float> found(losses.size() - 1, 0.0f);
  for (size_t i = 0; i < found.size() && sigma != 0; ++i) {
    found[i] = static_cast<float>((losses[i + 1] - losses[0]) / sigma);
  }
  return found;
}

}  // namespace

uint32_t StepPlan::times(size_t level) const {
  uint32_t count = 1;
  for (size_t i = 0; i < level; ++i) {
    count *= levels[i].probes();
  }
  return count;
}

uint32_t StepPlan::first_scalar(size_t level) const {
  uint32_t count = 0;
  for (size_t i = 0; i < level; ++i) {
    count += directions(i);
  }
  return count;
}

ProbeMove StepPlan::move(size_t level, uint32_t time, uint32_t probe) const {
  const ProbeLevel& here = levels[level];
  const uint32_t first = time * here.directions;
  if (!here.forward) {
    return {first + probe / 2, probe % 2 == 0 ? 1.0f : -1.0f};
  }
  return probe == 0 ? ProbeMove{first, 0.0f} : ProbeMove{first + probe - 1, 1.0f};
}

std::vector<float> StepPlan::slopes(const std::vector<double>& losses, double eps) const {
  if (divisor == Divisor::kDeviation) {
    return normalized(losses);
  }
  std::vector<float> found(scalars());
  // The losses of a level's probes: of the last one they are given, of the others the means over the level inside.
  std::vector<double> values = losses;
  for (size_t level = levels.size(); level-- > 0;) {
    const ProbeLevel& here = levels[level];
    const size_t probes = here.probes();
    std::vector<double> means;
    for (uint32_t time = 0; time < times(level); ++time) {
      const double* of = values.data() + time * probes;
      for (size_t i = 0; i < here.directions; ++i) {
        const double slope = here.forward ? (of[i + 1] - of[0]) / eps : (of[2 * i] - of[2 * i + 1]) / (2.0 * eps);
        found[first_scalar(level) + size_t{time} * here.directions + i] = static_cast<float>(slope);
      }
      means.push_back(std::accumulate(of, of + probes, 0.0) / static_cast<double>(probes));
    }
    values = std::move(means);
  }
  return found;
}

size_t StepPlan::level_of(size_t stage) const {
  size_t level = 0;
  while (level + 1 < levels.size() && stage >= levels[level + 1].begin) {
    ++level;
  }
  return level;
}

bool copies_from_text(const std::string& text, Copies& copies) {
  if (text != "one" && text != "stage" && text != "call") {
    return false;
  }
  copies = text == "one" ? Copies::kOne : text == "stage" ? Copies::kStage : Copies::kCall;
  return true;
}

bool noise_from_text(const std::string& text, rng::Noise& noise) {
  noise = text == "rademacher" ? rng::Noise::kRademacher : rng::Noise::kNormal;
  return text == "normal" || text == "rademacher";
}

bool divisor_from_text(const std::string& text, Divisor& divisor) {
  divisor = text == "deviation" ? Divisor::kDeviation : Divisor::kDistance;
  return text == "distance" || text == "deviation";
}

bool update_from_text(const std::string& text, UpdateKind& kind) {
  kind = text == "adam" ? UpdateKind::kAdam : text == "muon" ? UpdateKind::kMuon : UpdateKind::kMomentum;
  return text == "momentum" || text == "adam" || text == "muon";
}

}  // namespace zoexport
