#include "session/manifest/grid.h"

#include <algorithm>
#include <cmath>

#include "rng/philox.h"

namespace zoexport {
namespace {

constexpr int64_t kLeastEntries = 1 << 3;
constexpr int64_t kMostEntries = 1 << 10;

bool is_table(const SlotSpec& slot) {
  return slot.role == "frozen" && slot.dtype == ZO_INT32 && slot.shape.size() == 2 && slot.shape[1] == 2 &&
         slot.shape[0] >= kLeastEntries && slot.shape[0] <= kMostEntries && (slot.shape[0] & (slot.shape[0] - 1)) == 0;
}

// Floats cannot be trained together with integers: they would need their own perturbation and learning rate.
void check_slots(const Manifest& manifest, JsonProblems& problems) {
  for (const SlotSpec& slot : manifest.slots) {
    const std::string name = std::string("the ") + dtype_text(slot.dtype) + " slot " + slot.name;
    if (slot.tensor_id >= rng::kShuffle - rng::kRounding) {
      problems.add("state", name + " with the tensor_id " + std::to_string(slot.tensor_id),
                   "one below 2147483647: the ids from there on are those of its rounding and of the shuffle");
    }
    if (slot.role != "trainable") {
      continue;
    }
    if (!slot.integers()) {
      problems.add("state", "the trainable " + name.substr(4) + " in a bundle with grid",
                   "uint8 or int8, as one method trains all of them");
    } else if (slot.shape.size() != 2) {
      problems.add("state", name + " of another shape", "(N, K/2) of uint8, two integers a byte, or (N, K) of int8");
    }
  }
}

}  // namespace

void read_grid(const JsonNode& root, Manifest& manifest) {
  if (!root.has("grid")) {
    return;
  }
  const JsonNode node = root.member("grid");
  const JsonNode estimator = node.member("estimator");
  GridSpec grid;
  grid.table = node.member("table").text();
  grid.eps = node.member("eps").number();
  const std::string rule = estimator.text();
  grid.summed = rule == "q-rge1-summed" || rule == "q-rge2-summed";
  grid.second = rule == "q-rge2" || rule == "q-rge2-summed";
  if (!(std::isfinite(grid.eps) && static_cast<float>(grid.eps) > 0)) {
    node.member("eps").problem("a number above 0");
  }
  if (!grid.second && !grid.summed && rule != "q-rge1") {
    estimator.problem("q-rge1 or q-rge2, with -summed or without");
  }
  manifest.grid = grid;
}

void check_grid(const Manifest& manifest, JsonProblems& problems) {
  const auto trained = std::find_if(manifest.slots.begin(), manifest.slots.end(),
                                    [](const SlotSpec& slot) { return slot.role == "trainable" && slot.integers(); });
  const bool any = trained != manifest.slots.end();
  if (!manifest.grid) {
    if (any) {
      problems.add("grid",
                   std::string("nothing, and the trainable ") + dtype_text(trained->dtype) + " slot " + trained->name,
                   "the table and the eps that integers are trained with");
    }
    return;
  }
  if (!any) {
    problems.add("grid", "a grid without a trainable slot of uint8 or int8", "at least one such slot, or no grid");
    return;
  }
  // If there are queries, `optimizer` names the zeroth-order update rule.
  if (!manifest.optimizer.empty() && manifest.queries() == 0) {
    problems.add("settings.optimizer", manifest.optimizer + " without queries in a bundle with grid",
                 "settings.num_queries, as no first-order method trains integers");
    return;
  }
  if (manifest.whole() || manifest.copies == 1) {
    problems.add(manifest.whole() ? "stages" : "copies",
                 manifest.whole() ? "nothing, but grid" : "1 in a bundle with grid",
                 "stages, with 2 * settings.num_queries copies: programs perturb integers where they unpack them");
    return;
  }
  check_slots(manifest, problems);
  const auto table = std::find_if(manifest.slots.begin(), manifest.slots.end(),
                                  [&](const SlotSpec& slot) { return slot.name == manifest.grid->table; });
  if (table == manifest.slots.end() || !is_table(*table)) {
    problems.add("grid.table", manifest.grid->table, "a frozen int32 slot (2^t, 2) under state, with t from 3 to 10");
  }
  if (const double eps = manifest.settings.number("eps");
      static_cast<float>(eps) != static_cast<float>(manifest.grid->eps)) {
    problems.add("settings.eps", std::to_string(eps),
                 "grid.eps = " + std::to_string(manifest.grid->eps) + ", which the table was made for");
  }
  if (manifest.program("update") != nullptr) {
    problems.add("program update", "one in a bundle with grid", "none, as the session updates integers");
  }
}

}  // namespace zoexport
