#include "job/held_out.h"

#include "job/calls.h"

namespace zoexport {

using nlohmann::json;

HeldOut::HeldOut(const json& state) {
  const json validation = state.value("validation", json());
  if (!validation.is_object()) {
    return;
  }
  begun_ = state.value("steps", uint64_t{0}) > 0;
  sha256_ = validation["data"]["sha256"].get<std::string>();
  examples_ = validation["data"]["examples"].get<uint64_t>();
  every_ = validation["every"].get<uint64_t>();
  patience_ = validation["patience"].get<uint64_t>();
  keep_best_ = validation["keep"] == "best";
  ended_ = validation["ended"].get<bool>();
  made_ = validation["evaluations"];
  for (json& one : made_) {
    one["best"] = one["step"] == validation["best_step"];
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
  now.every_ = asked.validation.value("eval_every", now.every_);
  now.patience_ = asked.validation.value("patience", now.patience_);
  now.keep_best_ = asked.validation.value("keep", std::string(now.keep_best_ ? "best" : "last")) == "best";
  // Losses on other examples cannot be compared.
  now.made_ = sha256 == sha256_ ? made_ : json::array();
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

void HeldOut::add(const json& evaluated) {
  while (!made_.empty() && made_.back()["step"] >= evaluated["step"]) {
    made_.erase(made_.size() - 1);
  }
  if (evaluated["best"] == true) {
    for (json& one : made_) {
      one["best"] = false;
    }
  }
  made_.push_back(evaluated);
}

const json* HeldOut::best() const {
  for (const json& one : made_) {
    if (one["best"] == true) {
      return &one;
    }
  }
  return nullptr;
}

json HeldOut::best_step() const { return best() == nullptr ? json() : (*best())["step"]; }

json HeldOut::evaluation(const json* one) const {
  if (one == nullptr) {
    return nullptr;
  }
  json found = *one;
  found.erase("step");
  found.erase("best");
  found["examples"] = examples_;
  return found;
}

json HeldOut::untrained() const { return evaluation(made_.empty() || made_[0]["step"] > 0 ? nullptr : &made_[0]); }

json HeldOut::kept() const {
  const json* const lowest = keep_best_ ? best() : nullptr;
  return evaluation(lowest != nullptr ? lowest : made_.empty() ? nullptr : &made_.back());
}

}  // namespace zoexport
