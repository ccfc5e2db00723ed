#include "job/held_out.h"

#include <limits>

#include "job/calls.h"

namespace zoexport {
namespace {

using nlohmann::json;

double number(const json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

}  // namespace

HeldOut::HeldOut(const json& state) {
  const json validation = state.value("validation", json());
  if (!validation.is_object()) {
    return;
  }
  begun_ = state.value("steps", uint64_t{0}) > 0;
  sha256_ = validation["data"]["sha256"].get<std::string>();
  examples_ = validation["data"]["examples"].get<uint64_t>();
  every_ = validation["every"].get<uint32_t>();
  patience_ = validation["patience"].get<uint32_t>();
  keep_best_ = validation["keep"] == "best";
  ended_ = validation["ended"].get<bool>();
  for (const json& one : validation["evaluations"]) {
    made_.push_back({sizeof(zo_evaluated), one["step"] == validation["best_step"] ? 1u : 0u,
                     one["step"].get<uint64_t>(), number(one["loss"]), number(one["accuracy"]),
                     number(one["token_accuracy"]), number(one["margin"])});
  }
}

Result<HeldOut> HeldOut::with(const JobRecord& asked, const zo_dataset* examples) const {
  if (examples == nullptr) {
    return HeldOut();
  }
  HeldOut now = begun_ ? *this : HeldOut();
  ZO_ASSIGN(sha256, digest_of(examples));
  now.sha256_ = sha256;
  now.examples_ = zo_dataset_size(examples);
  now.every_ = asked.eval_every > 0 ? asked.eval_every : now.every_;
  now.patience_ = asked.patience > 0 ? asked.patience : now.patience_;
  now.keep_best_ = asked.keep == ZO_KEEP_DEFAULT ? now.keep_best_ : asked.keep == ZO_KEEP_BEST;
  // Losses on other examples cannot be compared.
  now.made_ = sha256 == sha256_ ? made_ : std::vector<zo_evaluated>();
  now.ended_ = ended_ && !is_other(now);
  return now;
}

bool HeldOut::is_other(const HeldOut& now) const {
  return begun_ &&
         (sha256_ != now.sha256_ || every_ != now.every_ || patience_ != now.patience_ || keep_best_ != now.keep_best_);
}

std::string HeldOut::told(const HeldOut& now) const {
  if (sha256_.empty()) {
    return "no held-out examples";
  }
  const char* const which =
      now.sha256_.empty() || now.sha256_ == sha256_ ? " held-out examples" : " other held-out examples";
  return std::to_string(examples_) + which + " every " + std::to_string(every_) + " steps, patience " +
         std::to_string(patience_) + ", keep " + (keep_best_ ? "best" : "last");
}

void HeldOut::add(const zo_evaluated& evaluated) {
  while (!made_.empty() && made_.back().step >= evaluated.step) {
    made_.pop_back();
  }
  if (evaluated.best != 0) {
    for (zo_evaluated& one : made_) {
      one.best = 0;
    }
  }
  made_.push_back(evaluated);
}

const zo_evaluated* HeldOut::best() const {
  for (const zo_evaluated& one : made_) {
    if (one.best != 0) {
      return &one;
    }
  }
  return nullptr;
}

std::optional<zo_evaluation> HeldOut::evaluation(const zo_evaluated* one) const {
  if (one == nullptr) {
    return std::nullopt;
  }
  return zo_evaluation{sizeof(zo_evaluation), one->loss, one->accuracy, one->token_accuracy, examples_, one->margin};
}

std::optional<zo_evaluation> HeldOut::untrained() const {
  return evaluation(made_.empty() || made_.front().step > 0 ? nullptr : &made_.front());
}

std::optional<zo_evaluation> HeldOut::kept() const {
  const zo_evaluated* const lowest = keep_best_ ? best() : nullptr;
  return evaluation(lowest != nullptr ? lowest : made_.empty() ? nullptr : &made_.back());
}

}  // namespace zoexport
