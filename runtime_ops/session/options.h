// Options of calls and settings of runs: JSON objects, checked against graphs/schema/settings.schema.json, which is
// compiled in. A new setting is declared there, by its Python dataclass, and read here by its key.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "session/losses.h"
#include "session/result.h"

namespace zoexport {

// Parse the JSON object of a call's options; `text` may be null.
Result<nlohmann::json> parse_options(const char* text, const std::string& kind);

// Values by key. If a key was not given, its getter returns the table's default, or else the least value: the minimum,
// the first enum word, zero or false.
class Options {
 public:
  // `kind`: name of a definition in the table.
  explicit Options(std::string kind);

  // Parse and check the names, types and ranges of a call's options; `text` may be null.
  static Result<Options> parse(const char* kind, const char* text);
  // Check options of a kind, which must be in the table.
  static Status check_kind(const std::string& kind, const char* text);

  // Check and set values; null means that a key is not given. On failure nothing changes.
  Status set(const nlohmann::json& given);

  bool has(const char* key) const;
  double number(const char* key) const;
  uint64_t whole(const char* key) const;
  // Like whole(), for keys whose maximum in the table fits into 32 bits.
  uint32_t count(const char* key) const { return static_cast<uint32_t>(whole(key)); }
  bool flag(const char* key) const;
  std::string text(const char* key) const;
  // Return the given value, or null.
  const nlohmann::json& value(const char* key) const;
  // Like value(), for a call's options: members of objects keep the order in which they were given.
  nlohmann::ordered_json in_order(const char* key) const;
  const nlohmann::json& given() const { return given_; }

 protected:
  // Return the table's entry of a key; null if the key is unknown.
  const nlohmann::json* property(const std::string& key) const;
  // Return the failure for one value; it names the setting or option as messages do.
  Failure refused(const std::string& key, const nlohmann::json& found, const std::string& expected) const;
  Status check(const std::string& key, const nlohmann::json& value) const;

 private:
  nlohmann::json value_or_default(const char* key) const;

  std::string kind_;
  std::string written_;  // JSON text of a call's options
  nlohmann::json given_ = nlohmann::json::object();
};

// Settings of a run, by the keys of the manifest's member `settings`.
class RunSettings : public Options {
 public:
  RunSettings() : Options("settings") {}

  // Set a setting from a manifest; ignore settings that are compiled into the bundle.
  Status read(const std::string& key, const nlohmann::json& value);
  // Apply changes of a host or a state; refuse a setting that is compiled into the bundle.
  Status change(const nlohmann::json& settings);
  // Return the settings that a run keeps when it resumes: all settings of the phase `run` except the seed, which a
  // state stores itself. `total_steps` is included only if the schedule's rates depend on it.
  nlohmann::json kept() const;

  uint64_t seed() const { return whole("seed"); }
  int32_t loss() const { return loss_from_text(text("loss")); }
  bool packs() const { return flag("pack"); }
  Objective objective() const;
};

}  // namespace zoexport
