// Options of calls and settings of runs: JSON objects, checked against graphs/schema/settings.schema.json, which is compiled
// in. A new setting is declared there, by its Python dataclass, and read here by its key.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "session/losses.h"
#include "session/result.h"

namespace zoexport {

// Parses the JSON object of a call's options; `text` may be null.
Result<nlohmann::json> parse_options(const char* text, const std::string& kind);

// Values by key. A getter of a key that was not given returns the table's default, or else its least value: its minimum, the
// first of its words, zero, false.
class Options {
 public:
  // `kind`: a definition of the table.
  explicit Options(std::string kind);

  // Checks names, types and ranges of the options of a call; `text` may be null.
  static Result<Options> parse(const char* kind, const char* text);
  // The same, if the table has such a kind.
  static Status check_kind(const std::string& kind, const char* text);

  // Checks and takes values; null stands for a key that is not given. On failure nothing changes.
  Status set(const nlohmann::json& given);

  bool has(const char* key) const;
  double number(const char* key) const;
  uint64_t whole(const char* key) const;
  // A number whose maximum in the table fits.
  uint32_t count(const char* key) const { return static_cast<uint32_t>(whole(key)); }
  bool flag(const char* key) const;
  std::string text(const char* key) const;
  // The given value, or null.
  const nlohmann::json& value(const char* key) const;
  // The same of a call's options, with the order that the members of its objects were given in.
  nlohmann::ordered_json in_order(const char* key) const;
  const nlohmann::json& given() const { return given_; }

 protected:
  // The table's entry of a key; null for an unknown one.
  const nlohmann::json* property(const std::string& key) const;
  // The failure of one value, named as in messages.
  Failure refused(const std::string& key, const nlohmann::json& found, const std::string& expected) const;
  Status check(const std::string& key, const nlohmann::json& value) const;

 private:
  nlohmann::json value_or_default(const char* key) const;

  std::string kind_;
  std::string written_;  // the options of a call
  nlohmann::json given_ = nlohmann::json::object();
};

// The settings of a run, by the keys of the manifest's member `settings`.
class RunSettings : public Options {
 public:
  RunSettings() : Options("settings") {}

  // Takes a setting of a manifest, unless it is one that is compiled in.
  Status read(const std::string& key, const nlohmann::json& value);
  // Takes what a host or a state changes; refuses a setting that is compiled into the bundle.
  Status change(const nlohmann::json& settings);
  // The settings that a run keeps when it resumes: those of the phase run, without the seed, which a state stores itself, and
  // with `total_steps` if the schedule's rates depend on it.
  nlohmann::json kept() const;

  uint64_t seed() const { return whole("seed"); }
  int32_t loss() const { return loss_from_text(text("loss")); }
  bool packs() const { return flag("pack"); }
  Objective objective() const;
};

}  // namespace zoexport
