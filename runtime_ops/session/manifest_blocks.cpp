#include "session/manifest_blocks.h"

#include <algorithm>

namespace zoexport {
namespace {

constexpr int64_t kMostDirections = 1 << 10;

bool reads(const StageSpec& stage, const std::string& slot) {
  return std::any_of(stage.bind.begin(), stage.bind.end(), [&](const auto& bound) { return bound.second == slot; });
}

}  // namespace

bool in_second_block(const Manifest& manifest, const std::string& slot) {
  return std::any_of(manifest.stages.begin() + static_cast<std::ptrdiff_t>(manifest.blocks->begin),
                     manifest.stages.end(), [&](const StageSpec& stage) { return reads(stage, slot); });
}

void read_blocks(const JsonNode& root, Manifest& manifest) {
  if (!root.has("blocks")) {
    return;
  }
  const JsonNode node = root.member("blocks");
  const std::vector<JsonNode> perturbations = node.member("perturbations").items();
  if (perturbations.size() != 2) {
    node.member("perturbations").problem("two numbers, of the first block and of the second");
    return;
  }
  const auto stages = static_cast<int64_t>(manifest.stages.size());
  BlocksSpec blocks;
  blocks.begin = static_cast<size_t>(node.member("second").integer(1, std::max<int64_t>(stages - 1, 1)));
  blocks.first = static_cast<uint32_t>(perturbations[0].integer(1, kMostDirections));
  blocks.second = static_cast<uint32_t>(perturbations[1].integer(1, kMostDirections));
  if (manifest.queries != 0) {
    node.problem("nothing in a bundle with settings.queries");
  }
  manifest.queries = blocks.scalars();
  manifest.blocks = blocks;
}

void check_blocks(const Manifest& manifest, JsonProblems& problems) {
  if (!manifest.blocks) {
    return;
  }
  if (!manifest.split() || manifest.copies != 1) {
    problems.add("blocks", manifest.split() ? "copies that programs perturb" : "no stages",
                 "stages whose slots the session perturbs");
    return;
  }
  if (manifest.program("update") != nullptr) {
    problems.add("program update", "one in a bundle with blocks", "none, as each block has an update of its own");
  }
  bool trained[2] = {false, false};
  for (const SlotSpec& slot : manifest.slots) {
    if (slot.role == "trainable") {
      trained[in_second_block(manifest, slot.name)] = true;
    }
  }
  if (!trained[0] || !trained[1]) {
    problems.add("blocks", std::string("a ") + (trained[0] ? "second" : "first") + " block without a trainable slot",
                 "something to train in both");
  }
}

}  // namespace zoexport
