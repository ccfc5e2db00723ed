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

// Those of a manifest without the member; 0 where gradients are computed.
uint32_t former_queries(const JsonNode& settings, const Manifest& manifest) {
  if (settings.has("queries")) {
    return static_cast<uint32_t>(settings.member("queries").integer(1, kMostDirections));
  }
  const ProgramSpec* train = manifest.program("train");
  const ValueSpec* gradients = train == nullptr ? nullptr : train->input("projected_gradients");
  return gradients == nullptr || gradients->shape.empty() ? 0 : static_cast<uint32_t>(gradients->shape[0].max);
}

StepPlan former_plan(const JsonNode& root, const Manifest& manifest) {
  StepPlan plan;
  const JsonNode settings = root.member("settings");
  if (root.has("blocks")) {
    const JsonNode node = root.member("blocks");
    const std::vector<JsonNode> perturbations = node.member("perturbations").items();
    if (perturbations.size() != 2 || settings.has("queries")) {
      node.problem("perturbations of two blocks, in a bundle without settings.queries");
      return plan;
    }
    const auto stages = static_cast<int64_t>(manifest.stages.size());
    const auto second = static_cast<size_t>(node.member("second").integer(1, std::max<int64_t>(stages - 1, 1)));
    for (size_t i = 0; i < 2; ++i) {
      const auto directions = static_cast<uint32_t>(perturbations[i].integer(1, kMostDirections));
      plan.levels.push_back({i == 0 ? 0 : second, directions, false});
    }
  } else if (const uint32_t queries = former_queries(settings, manifest); queries > 0) {
    plan.levels.push_back({0, queries, manifest.settings.difference == ZO_DIFFERENCE_FORWARD});
    // Only those that took one copy at a time had a choice of differences.
    plan.copies = manifest.copies > 1          ? Copies::kCall
                  : settings.has("difference") ? Copies::kOne
                  : manifest.whole()           ? Copies::kOne
                                               : Copies::kStage;
  }
  return plan;
}

}  // namespace

void read_step(const JsonNode& root, Manifest& manifest) {
  manifest.step = root.has("step") ? read_plan(root.member("step"), static_cast<int64_t>(manifest.stages.size()))
                                   : former_plan(root, manifest);
  if (!is_small(manifest.step)) {
    root.member("step").problem("fewer directions");
    manifest.step.levels.clear();
  }
  const bool choice = manifest.step.levels.size() == 1;  // else each level's is compiled in
  const bool forward = choice && manifest.step.levels[0].forward;
  manifest.settings.difference = forward ? ZO_DIFFERENCE_FORWARD : ZO_DIFFERENCE_CENTRAL;
}

void check_step(const Manifest& manifest, JsonProblems& problems) {
  const StepPlan& plan = manifest.step;
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
