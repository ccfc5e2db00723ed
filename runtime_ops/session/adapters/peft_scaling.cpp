#include "session/adapters/peft_scaling.h"

#include <algorithm>
#include <cmath>

#include "session/decimal.h"

namespace zoexport {
namespace {

using nlohmann::ordered_json;

// Limits for an untrusted file: its patterns may be crafted to match slowly.
constexpr size_t kMostPatterns = 1024;
constexpr uint32_t kMostSteps = 10'000;
constexpr size_t kLongestShown = 200;

Failure refused(const std::string& where, const std::string& found, const std::string& expected,
                const std::string& fix) {
  return {ZO_STATE_ERROR, where, found, expected, fix};
}

std::string shown(const ordered_json& value) {
  return value.dump(-1, ' ', true, ordered_json::error_handler_t::replace).substr(0, kLongestShown);
}

ordered_json member(const ordered_json& description, const char* key) { return description.value(key, ordered_json()); }

Result<double> number(const ordered_json& description, const char* key, const std::string& where) {
  const ordered_json value = member(description, key);
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= 0) {
    return refused(where + ", '" + key + "'", shown(value), "a number above 0",
                   "Use an adapter whose description has it.");
  }
  return value.get<double>();
}

}  // namespace

Result<PeftPatterns> PeftPatterns::read(const ordered_json& description, const char* key, const std::string& where) {
  PeftPatterns patterns;
  const ordered_json given = member(description, key);
  if (given.is_null()) {
    return patterns;
  }
  const std::string place = where + ", '" + key + "'";
  if (!given.is_object() || given.size() > kMostPatterns) {
    return refused(place, given.is_object() ? std::to_string(given.size()) + " patterns" : shown(given),
                   "at most " + std::to_string(kMostPatterns) + " numbers by pattern", "Use the file that PEFT wrote.");
  }
  for (const auto& [pattern, value] : given.items()) {
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= 0) {
      return refused(place, shown(value), "numbers above 0", "Use the file that PEFT wrote.");
    }
    auto regex = Regex::compile("^(.*\\.)?(" + pattern + ")$", place, kMostSteps);
    if (!regex.ok()) {
      return refused(place, shown(ordered_json(pattern)) + ", " + regex.failure().found, regex.failure().expected,
                     "Write the modules' names instead.");
    }
    patterns.numbers_.emplace_back(std::move(*regex), value.get<double>());
  }
  return patterns;
}

Result<double> PeftPatterns::of(const std::string& module, double otherwise) const {
  for (const auto& [regex, number] : numbers_) {
    const auto found = regex.find(module);
    if (!found.ok()) {
      return refused("a pattern of modules", found.failure().found,
                     "at most " + std::to_string(kMostSteps) + " steps a module", "Write the modules' names instead.");
    }
    if (std::any_of(found->begin(), found->end(), [&](const Span& span) { return span.end == module.size(); })) {
      return number;
    }
  }
  return otherwise;
}

Result<PeftScaling> PeftScaling::read(const std::string& text, const std::string& where) {
  const ordered_json description = ordered_json::parse(text, nullptr, false);
  if (!description.is_object()) {
    return refused(where, "JSON that is no object", "an object", "Use the file that PEFT wrote.");
  }
  PeftScaling scaling;
  ZO_ASSIGN(rank, number(description, "r", where));
  ZO_ASSIGN(alpha, number(description, "lora_alpha", where));
  const ordered_json rslora = member(description, "use_rslora");
  if (!rslora.is_null() && !rslora.is_boolean()) {
    return refused(where + ", 'use_rslora'", shown(rslora), "true or false", "Use the file that PEFT wrote.");
  }
  ZO_ASSIGN(ranks, PeftPatterns::read(description, "rank_pattern", where));
  ZO_ASSIGN(alphas, PeftPatterns::read(description, "alpha_pattern", where));
  scaling.rank_ = rank;
  scaling.alpha_ = alpha;
  scaling.rslora_ = rslora.is_boolean() && rslora.get<bool>();
  scaling.ranks_ = std::move(ranks);
  scaling.alphas_ = std::move(alphas);
  return scaling;
}

Result<double> PeftScaling::scale_of(const std::string& module) const {
  ZO_ASSIGN(rank, rank_of(module));
  ZO_ASSIGN(alpha, alpha_of(module));
  return alpha / (rslora_ ? std::sqrt(rank) : rank);
}

Result<double> PeftScaling::plain_alpha_of(const std::string& module) const {
  ZO_ASSIGN(rank, rank_of(module));
  ZO_ASSIGN(alpha, alpha_of(module));
  return rslora_ ? alpha * std::sqrt(rank) : alpha;
}

Result<double> share_alpha(const PeftScaling& scaling, std::vector<AdapterLayer>& layers) {
  std::vector<double> alphas;
  for (const AdapterLayer& layer : layers) {
    ZO_ASSIGN(alpha, scaling.plain_alpha_of(layer.module));
    alphas.push_back(alpha);
  }
  const auto least = std::min_element(alphas.begin(), alphas.end());
  if (least == alphas.end()) {
    return scaling.alpha();
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const double factor = alphas[i] / *least;
    int exponent = 0;
    if (std::frexp(factor, &exponent) != 0.5) {
      const std::string other = layers[static_cast<size_t>(least - alphas.begin())].module;
      return Failure{
          ZO_INVALID_ARGUMENT, "adapter format 'gguf'",
          "the alpha " + decimal(*least) + " of " + other + " and " + decimal(alphas[i]) + " of " + layers[i].module,
          "one for all layers, or powers of two of it, as the file has one number", "Export PEFT's form."};
    }
    if (factor != 1) {
      const auto by = static_cast<float>(factor);
      layers[i].b = [values = layers[i].b, size = layers[i].rank * layers[i].outputs, by](float* out) {
        values(out);
        std::for_each(out, out + size, [by](float& value) { value *= by; });
      };
    }
  }
  return *least;
}

}  // namespace zoexport
