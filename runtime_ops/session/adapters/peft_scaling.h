// Ranks of an adapter's layers and what these are scaled by, as PEFT's description has them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "session/adapters/adapter.h"
#include "session/result.h"
#include "session/text/regex.h"

namespace zoexport {

// Numbers of modules by regular expressions for the whole path, or for its end from a dot on; the first that matches counts.
class PeftPatterns {
 public:
  // Return the member `key` of a description, in the order of its text; empty if the member is absent.
  static Result<PeftPatterns> read(const nlohmann::ordered_json& description, const char* key,
                                   const std::string& where);

  bool empty() const { return numbers_.empty(); }
  // Return the value of the matching pattern, or `otherwise` if no pattern matches.
  Result<double> of(const std::string& module, double otherwise) const;

 private:
  std::vector<std::pair<Regex, double>> numbers_;
};

class PeftScaling {
 public:
  // `text` is that of a description.
  static Result<PeftScaling> read(const std::string& text, const std::string& where);

  // Return whether all modules have the same rank and alpha.
  bool uniform() const { return ranks_.empty() && alphas_.empty(); }
  bool rslora() const { return rslora_; }
  double rank() const { return rank_; }
  double alpha() const { return alpha_; }

  Result<double> rank_of(const std::string& module) const { return ranks_.of(module, rank_); }
  Result<double> alpha_of(const std::string& module) const { return alphas_.of(module, alpha_); }
  // Return the factor of the module's output: alpha / rank, or with rsLoRA alpha / sqrt(rank).
  Result<double> scale_of(const std::string& module) const;
  // The alpha that gives this scale without rsLoRA.
  Result<double> plain_alpha_of(const std::string& module) const;

 private:
  double rank_ = 0;
  double alpha_ = 0;
  bool rslora_ = false;
  PeftPatterns ranks_;
  PeftPatterns alphas_;
};

// The alpha of a file that has one for all layers and scales them by alpha / rank. B of a layer with a larger one is multiplied by what
// makes up for it, which must be a power of two: float32 then loses nothing.
Result<double> share_alpha(const PeftScaling& scaling, std::vector<AdapterLayer>& layers);

}  // namespace zoexport
