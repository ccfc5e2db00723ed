// Projected gradients of a step plan from its losses, against the equations.
#include <cmath>
#include <vector>

#include "check.h"
#include "session/manifest/step_plan.h"

using zoexport::Copies;
using zoexport::Divisor;
using zoexport::StepPlan;

namespace {

bool near(float found, double expected) { return std::fabs(found - expected) <= 1e-6 * std::fabs(expected); }

StepPlan plan_of(uint32_t directions, bool forward, Divisor divisor) {
  StepPlan plan;
  plan.levels.push_back({0, directions, forward});
  plan.copies = Copies::kStage;
  plan.divisor = divisor;
  return plan;
}

void by_distance() {
  const std::vector<float> both = plan_of(2, false, Divisor::kDistance).slopes({3.0, 2.0, 5.0, 5.5}, 0.01);
  CHECK(both.size() == 2 && near(both[0], 50.0) && near(both[1], -25.0));
  const std::vector<float> one = plan_of(2, true, Divisor::kDistance).slopes({3.0, 2.0, 5.0}, 0.01);
  CHECK(one.size() == 2 && near(one[0], -100.0) && near(one[1], 200.0));
}

// 4, 1, 4 has the mean 3, and as a sample the variance (1 + 4 + 1) / 2.
void by_deviation() {
  const StepPlan plan = plan_of(3, true, Divisor::kDeviation);
  CHECK(plan.together() == 4 && plan.evaluations() == 4);
  for (const double eps : {1e-2, 1.0}) {
    const std::vector<float> found = plan.slopes({2.0, 4.0, 1.0, 4.0}, eps);
    CHECK(found.size() == 3 && near(found[0], 2 / std::sqrt(3.0)) && near(found[1], -1 / std::sqrt(3.0)) &&
          found[2] == found[0]);
  }
}

// Equal losses tell nothing of their direction, and a loss that is not finite is left to the session's guard.
void without_deviation() {
  const StepPlan plan = plan_of(3, true, Divisor::kDeviation);
  CHECK(plan.slopes({2.0, 4.0, 4.0, 4.0}, 0.01) == std::vector<float>(3, 0.0f));
  CHECK(plan.slopes({2.0, 0.1, 0.1, 0.1}, 0.01) == std::vector<float>(3, 0.0f));  // their mean is not 0.1
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    const std::vector<float> found = plan.slopes({2.0, 4.0, bad, 1.0}, 0.01);
    CHECK(std::isnan(found[0]) && std::isnan(found[1]));
  }
}

void moves() {
  const StepPlan plan = plan_of(3, true, Divisor::kDeviation);
  CHECK(plan.move(0, 0, 0).side == 0);
  for (uint32_t probe = 1; probe < 4; ++probe) {
    CHECK(plan.move(0, 0, probe).side == 1 && plan.move(0, 0, probe).query == probe - 1);
  }
}

}  // namespace

int main() {
  by_distance();
  by_deviation();
  without_deviation();
  moves();
  return check::result();
}
