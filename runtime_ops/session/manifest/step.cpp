#include "session/manifest/step.h"

#include <algorithm>

namespace zoexport {
namespace {

constexpr int64_t kMostDirections = 1 << 15;
constexpr uint64_t kMostScalars = 1 << 24;
constexpr int64_t kLongestHorizon = 1000;
constexpr int64_t kLongestShorterSide = 1024;  // of a slot that Muon moves: its Gram matrix has the square of it

// Directions of any level, and losses, of a step: numbers that fit what holds them.
bool is_small(const StepPlan& plan) {
  uint64_t times = 1;
  for (const ProbeLevel& level : plan.levels) {
    times *= level.probes();
    if (times > kMostScalars) {
      return false;
    }
  }
  return true;
}

ProbeLevel read_level(const JsonNode& node, int64_t least, int64_t stages) {
  ProbeLevel level;
  level.begin = static_cast<size_t>(node.member("begin").integer(least, std::max(least, stages - 1)));
  level.directions = static_cast<uint32_t>(node.member("directions").integer(1, kMostDirections));
  const std::string difference = node.member("difference").text();
  level.forward = difference == "forward";
  if (!level.forward && difference != "central") {
    node.member("difference").problem("central or forward");
  }
  return level;
}

double read_beta(const JsonNode& node) {
  const double beta = node.number();
  if (!(beta >= 0 && beta < 1)) {
    node.problem("a number from 0 to below 1");
  }
  return beta;
}

UpdateRule read_update(const JsonNode& node) {
  UpdateRule update;
  if (!update_from_text(node.member("rule").text(), update.kind)) {
    node.member("rule").problem("momentum, adam or muon");
  }
  update.horizon = static_cast<uint32_t>(node.member("horizon").integer(1, kLongestHorizon));
  update.beta1 = read_beta(node.member("beta1"));
  if (update.kind == UpdateKind::kAdam) {
    update.beta2 = read_beta(node.member("beta2"));
  }
  return update;
}

StepPlan read_plan(const JsonNode& node, int64_t stages) {
  StepPlan plan;
  int64_t least = 0;
  for (const JsonNode& level : node.member("levels").items()) {
    plan.levels.push_back(read_level(level, least, plan.levels.empty() ? 1 : stages));
    least = static_cast<int64_t>(plan.levels.back().begin) + 1;
  }
  if (plan.levels.empty()) {
    node.member("levels").problem("at least one");
  }
  if (!copies_from_text(node.member("copies").text(), plan.copies)) {
    node.member("copies").problem("one, stage or call");
  }
  if (node.has("noise") && !noise_from_text(node.member("noise").text(), plan.noise)) {
    node.member("noise").problem("normal or rademacher");
  }
  if (node.has("divisor") && !divisor_from_text(node.member("divisor").text(), plan.divisor)) {
    node.member("divisor").problem("distance or deviation");
  }
  if (node.has("update")) {
    plan.update = read_update(node.member("update"));
  }
  return plan;
}

}  // namespace

void read_step(const JsonNode& root, Manifest& manifest) {
  if (!root.has("step")) {
    return;  // a first-order method
  }
  manifest.step = read_plan(root.member("step"), static_cast<int64_t>(manifest.stages.size()));
  if (!is_small(manifest.step)) {
    root.member("step").problem("fewer directions");
    manifest.step.levels.clear();
  }
  const bool choice = manifest.step.levels.size() == 1;  // else each level's is compiled in
  const bool forward = choice && manifest.step.levels[0].forward;
  (void)manifest.settings.set({{"difference", forward ? "forward" : "central"}});
}

void check_step(const Manifest& manifest, JsonProblems& problems) {
  const StepPlan& plan = manifest.step;
  if (manifest.queries() > 0 && !manifest.settings.has("eps")) {
    problems.add("settings.eps", "nothing", "a number above 0, by which differences are divided");
  }
  const uint32_t together = plan.copies == Copies::kCall ? plan.evaluations() : 1;
  if (manifest.copies != together) {
    problems.add("copies", std::to_string(manifest.copies), std::to_string(together) + ", as step says");
  }
  const bool forward =
      std::any_of(plan.levels.begin(), plan.levels.end(), [](const ProbeLevel& level) { return level.forward; });
  // Programs of layers that perturb have normals, and move to both sides.
  const bool stacked = plan.copies == Copies::kCall && !manifest.whole();
  if (forward && stacked) {
    problems.add("step.levels", "forward differences of copies that programs of layers make", "central ones");
  }
  if (plan.noise != rng::Noise::kNormal && (stacked || manifest.program("update") != nullptr)) {
    problems.add("step.noise", "rademacher, in programs of layers that make noise", "normal");
  }
  if (plan.divisor == Divisor::kDeviation &&
      (plan.levels.size() != 1 || !forward || plan.levels[0].directions < 2 || plan.copies == Copies::kOne)) {
    problems.add("step.divisor", "deviation, of other losses",
                 "one level with forward differences, two directions or more, and copies that are computed together");
  }
  if (plan.update.kind != UpdateKind::kSgd) {
    const bool floats = std::all_of(manifest.slots.begin(), manifest.slots.end(), [](const SlotSpec& slot) {
      return slot.role != "trainable" || slot.dtype == ZO_FLOAT32;
    });
    if (manifest.whole() || manifest.program("update") != nullptr || !floats) {
      problems.add("step.update", "a rule of several steps, where programs update or slots are no float32",
                   "one step's gradients, or float32 slots that the session updates");
    }
    const bool matrices = std::all_of(manifest.slots.begin(), manifest.slots.end(), [](const SlotSpec& slot) {
      return slot.role != "trainable" ||
             (slot.shape.size() == 2 && std::min(slot.shape[0], slot.shape[1]) <= kLongestShorterSide);
    });
    if (plan.update.kind == UpdateKind::kMuon && !matrices) {
      problems.add("step.update.rule", "muon, of slots that are no matrices or have no short side",
                   "matrices with a side of at most " + std::to_string(kLongestShorterSide));
    }
  }
  if (manifest.whole()) {
    if (plan.levels.size() > 1 || plan.copies == Copies::kStage) {
      problems.add("step", "a plan that needs stages", "one level, in a bundle of whole programs");
    }
    return;
  }
  if (plan.levels.size() < 2) {
    return;
  }
  if (plan.copies != Copies::kOne) {
    problems.add("step.copies", "several at once", "one, where there is more than one level");
  }
  if (manifest.program("update") != nullptr) {
    problems.add("program update", "one in a bundle with several levels",
                 "none, as each level has an update of its own");
  }
  std::vector<bool> trained(plan.levels.size(), false);
  for (const SlotSpec& slot : manifest.slots) {
    if (slot.role == "trainable") {
      trained[manifest.level_of(slot.name)] = true;
    }
  }
  if (std::find(trained.begin(), trained.end(), false) != trained.end()) {
    problems.add("step.levels", "a group without a trainable slot", "something to train in each");
  }
}

}  // namespace zoexport
