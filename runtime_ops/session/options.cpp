#include "session/options.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "session/decimal.h"
#include "session/storage/json_reader.h"
#include "settings_table.h"

namespace zoexport {
namespace {

using nlohmann::json;

constexpr uint64_t kMostByDefault = std::numeric_limits<uint32_t>::max();
constexpr size_t kLongestShown = 80;
const char* const kPhase = "phase";

const json& definitions() {
  static const json table = json::parse(kSettingsTable)["$defs"];
  return table;
}

std::string shown(const json& value) {
  const std::string text = value.is_string() ? "'" + value.get<std::string>() + "'"
                                             : value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= kLongestShown ? text : text.substr(0, kLongestShown - 3) + "...";
}

size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// Return a sentence that suggests the key most similar to `name`; empty if no key is similar.
std::string nearest(const std::string& name, const json& properties) {
  std::string found;
  size_t least = name.size() / 2 + 1;
  for (const auto& [key, ignored] : properties.items()) {
    if (const size_t steps = distance(name, key); steps < least) {
      least = steps;
      found = key;
    }
  }
  return found.empty() ? "" : " Did you mean '" + found + "'?";
}

std::string joined(const json& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    text += (i == 0                  ? ""
             : i + 1 == words.size() ? " or "
                                     : ", ") +
            (words[i].is_string() ? words[i].get<std::string>() : words[i].dump());
  }
  return text;
}

std::string in_range(const std::string& kind, const json& property) {
  std::string text = kind;
  const char* separator = " ";
  const auto bound = [&](const char* key, const char* words) {
    if (property.contains(key) && property[key] != std::numeric_limits<uint64_t>::max()) {
      text += separator + (words + property[key].dump());
      separator = " and ";
    }
  };
  bound("minimum", "of at least ");
  bound("exclusiveMinimum", "above ");
  bound("maximum", "of at most ");
  bound("exclusiveMaximum", "below ");
  if (property["type"] == "number" && !property.contains("maximum") && !property.contains("exclusiveMaximum")) {
    text += ", in the range of float32";
  }
  return text;
}

// Return whether a floating-point number is an integer that a double represents exactly.
bool is_whole(const json& value) {
  constexpr double kMost = 9007199254740992;  // 2^53
  return value.is_number_float() && std::floor(value.get<double>()) == value.get<double>() &&
         std::fabs(value.get<double>()) <= kMost;
}

bool is_type(const json& value, const std::string& type) {
  return type == "string"    ? value.is_string()
         : type == "boolean" ? value.is_boolean()
         : type == "array"   ? value.is_array()
         : type == "object"  ? value.is_object()
         : type == "integer" ? value.is_number_integer() || is_whole(value)
                             : value.is_number();
}

// Return whether a number is in range. Non-integers are used as float32, whose range is smaller.
bool fits(const json& value, const json& property, bool whole) {
  if (whole) {
    if (!value.is_number_unsigned() && value.get<double>() < 0) {
      return false;  // no option is negative
    }
    const auto number = value.get<uint64_t>();
    const uint64_t most = property.value("maximum", kMostByDefault);
    return number >= property.value("minimum", uint64_t{0}) && number <= most &&
           (!property.contains("exclusiveMaximum") || number < property["exclusiveMaximum"].get<uint64_t>());
  }
  const auto number = value.get<double>();
  const auto bound = [&](const char* key, double otherwise) { return property.value(key, otherwise); };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return std::fabs(number) <= static_cast<double>(std::numeric_limits<float>::max()) &&
         number >= bound("minimum", -kInfinity) && number <= bound("maximum", kInfinity) &&
         static_cast<double>(static_cast<float>(number)) > bound("exclusiveMinimum", -kInfinity) &&
         number < bound("exclusiveMaximum", kInfinity);
}

}  // namespace

Options::Options(std::string kind) : kind_(std::move(kind)) {}

const json* Options::property(const std::string& key) const {
  const json& properties = definitions()[kind_]["properties"];
  const auto found = properties.find(key);
  return found == properties.end() ? nullptr : &*found;
}

Failure Options::refused(const std::string& key, const json& found, const std::string& expected) const {
  const bool setting = kind_ == "settings" || kind_ == "read";
  return {ZO_INVALID_ARGUMENT, (setting ? "setting '" : "option '") + key + "'", shown(found), expected, "Correct it."};
}

Status Options::check(const std::string& key, const json& value) const {
  const json* const known = property(key);
  if (known == nullptr) {
    const json& properties = definitions()[kind_]["properties"];
    json names = json::array();
    for (const auto& [name, entry] : properties.items()) {
      if (kind_ != "settings" || entry.contains(kPhase)) {
        names.push_back(name);
      }
    }
    Failure failure = refused(key, value, "one of " + joined(names));
    failure.found = kind_ == "settings" ? "no such setting" : "no such option";
    failure.fix = "Correct the name." + nearest(key, properties);
    return failure;
  }
  const std::string type = (*known)["type"];
  if (known->contains("enum")) {
    const json& words = (*known)["enum"];
    return std::find(words.begin(), words.end(), value) != words.end() ? Status()
                                                                       : Status(refused(key, value, joined(words)));
  }
  const bool numeric = type == "integer" || type == "number";
  if (!is_type(value, type) || (numeric && !fits(value, *known, type == "integer"))) {
    return refused(key, value,
                   type == "integer"   ? in_range("a whole number", *known)
                   : type == "number"  ? in_range("a number", *known)
                   : type == "boolean" ? "true or false"
                   : type == "string"  ? "a text"
                   : type == "array"   ? "a list"
                                       : "an object");
  }
  // Paths and names become C strings, which a zero character would truncate.
  if (type == "string" && key != "prompt" && value.get<std::string>().find('\0') != std::string::npos) {
    return refused(key, value, "a text without zero characters");
  }
  if (type == "array") {
    const std::string item = (*known)["items"]["type"];
    for (const json& one : value) {
      if (!is_type(one, item)) {
        return refused(key, one, "a list of values of the type " + item);
      }
    }
  }
  return {};
}

Result<json> parse_options(const char* text, const std::string& kind) {
  if (text == nullptr) {
    return json::object();
  }
  const std::string content = text;
  return parse_json(content.data(), content.data() + content.size(), ZO_INVALID_ARGUMENT, "options of " + kind,
                    "Pass a JSON object, or NULL.");
}

Result<Options> Options::parse(const char* kind, const char* text) {
  Options options(kind);
  ZO_ASSIGN(given, parse_options(text, kind));
  ZO_TRY(options.set(given));
  options.written_ = text == nullptr ? "{}" : text;
  return options;
}

nlohmann::ordered_json Options::in_order(const char* key) const {
  if (!has(key)) {
    return {};
  }
  const auto whole = parse_json<nlohmann::ordered_json>(written_.data(), written_.data() + written_.size(),
                                                        ZO_INVALID_ARGUMENT, "options of " + kind_, "");
  return whole.ok() ? (*whole)[key] : nlohmann::ordered_json();
}

Status Options::check_kind(const std::string& kind, const char* text) {
  if (!definitions().contains(kind)) {
    return Failure{ZO_INVALID_ARGUMENT, "kind", kind, "a kind of options of the table", "Correct the name."};
  }
  ZO_TRY(parse(kind.c_str(), text));
  return {};
}

Status Options::set(const json& given) {
  if (!given.is_object()) {
    return Failure{ZO_INVALID_ARGUMENT, "options of " + kind_, shown(given), "a JSON object",
                   "Pass an object, or NULL."};
  }
  for (const auto& [key, value] : given.items()) {
    if (!value.is_null()) {
      ZO_TRY(check(key, value));
    }
  }
  for (const auto& [key, value] : given.items()) {
    if (!value.is_null()) {
      const std::string type = (*property(key))["type"];
      // Hosts write 1 or 1.0; a state stores one form.
      given_[key] = type == "number"    ? json(value.get<double>())
                    : type == "integer" ? json(value.get<uint64_t>())
                                        : value;
    }
  }
  return {};
}

bool Options::has(const char* key) const { return given_.contains(key); }

const json& Options::value(const char* key) const {
  static const json kNone;
  const auto found = given_.find(key);
  return found == given_.end() ? kNone : *found;
}

json Options::value_or_default(const char* key) const {
  if (const auto found = given_.find(key); found != given_.end()) {
    return *found;
  }
  const json* const known = property(key);
  if (known == nullptr) {
    return nullptr;
  }
  return known->contains("default") ? (*known)["default"]
         : known->contains("enum")  ? (*known)["enum"][0]
                                    : known->value("minimum", json());
}

double Options::number(const char* key) const {
  const json found = value_or_default(key);
  return found.is_number() ? found.get<double>() : 0;
}

uint64_t Options::whole(const char* key) const {
  const json found = value_or_default(key);
  return found.is_number() ? found.get<uint64_t>() : 0;
}

bool Options::flag(const char* key) const {
  const json found = value_or_default(key);
  return found.is_boolean() && found.get<bool>();
}

std::string Options::text(const char* key) const {
  const json found = value_or_default(key);
  return found.is_string() ? found.get<std::string>() : "";
}

Status RunSettings::read(const std::string& key, const json& value) {
  const json* const known = property(key);
  return known != nullptr && known->contains(kPhase) ? set(json::object({{key, value}})) : Status();
}

Status RunSettings::change(const json& settings) {
  if (settings.is_object()) {
    for (const auto& [key, value] : settings.items()) {
      const json* const known = property(key);
      if (known != nullptr && !known->contains(kPhase)) {
        Failure failure = refused(key, value, "a setting that a run can change");
        failure.found = "a setting that is compiled into the bundle";
        failure.fix = "Compile the bundle again with --set " + key + "=" +
                      (value.is_string() ? value.get<std::string>() : value.dump()) + ".";
        return failure;
      }
    }
  }
  return set(settings);
}

json RunSettings::kept() const {
  json found = json::object();
  for (const auto& [key, entry] : definitions()["settings"]["properties"].items()) {
    const bool scheduled = key != "total_steps" || text("lr_scheduler_type") != "constant";
    if (entry.value(kPhase, std::string()) == "run" && key != "seed" && has(key.c_str()) && scheduled) {
      found[key] = value(key.c_str());
    }
  }
  return found;
}

Objective RunSettings::objective() const {
  const int32_t compared = loss();
  return {compared, number(compared == ZO_LOSS_DPO ? "dpo.beta" : "orpo.beta"),
          text("choices") == "mean" ? ZO_CHOICES_MEAN : ZO_CHOICES_SUM};
}

}  // namespace zoexport
