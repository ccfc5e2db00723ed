#include "session/chat/value.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "session/text/utf8.h"

namespace zoexport::jinja {
namespace {

// Return Python's repr: the fewest digits that are read back as the same number.
std::string float_text(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value < 0 ? "-inf" : "inf";
  }
  char digits[40];
  for (int count = 1; count <= 17; ++count) {
    std::snprintf(digits, sizeof(digits), "%.*e", count - 1, value);
    if (std::strtod(digits, nullptr) == value) {
      std::string shown = digits;
      const size_t mark = shown.find('e');
      const auto exponent = static_cast<int>(std::strtol(shown.c_str() + mark + 1, nullptr, 10));
      if (exponent < -4 || exponent >= 16) {
        return shown;
      }
      char plain[40];
      std::snprintf(plain, sizeof(plain), "%.*f", std::max(count - 1 - exponent, 1), value);
      return plain;
    }
  }
  return digits;
}

std::string quoted(const std::string& text) {
  const char mark = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string result(1, mark);
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const char32_t one = next_character(text, at);
    const bool shown =
        one >= 0x20 && one != 0x7F && (one < 0x80 || (one > 0xA0 && one != 0xAD && !is_white_space(one)));
    if (one == '\n' || one == '\r' || one == '\t') {
      result += one == '\n' ? "\\n" : one == '\r' ? "\\r" : "\\t";
    } else if (one == '\\' || one == static_cast<unsigned char>(mark)) {
      result += {'\\', static_cast<char>(one)};
    } else if (shown) {
      result.append(text, here, at - here);
    } else {
      char code[16];
      std::snprintf(code, sizeof(code), one < 0x100 ? "\\x%02x" : "\\u%04x", static_cast<unsigned>(one));
      result += code;
    }
  }
  return result + mark;
}

std::string json_string(const std::string& text, bool ascii) {
  return nlohmann::json(text).dump(-1, ' ', ascii, nlohmann::json::error_handler_t::replace);
}

bool add_json(Costs& costs, const Value& value, const JsonLayout& layout, size_t level, std::string& result) {
  const auto line = [&](size_t depth) {
    if (layout.indent && costs.spend(layout.indent->size() * depth)) {
      result += '\n';
      for (size_t i = 0; i < depth; ++i) {
        result += *layout.indent;
      }
    }
  };
  // json.dumps leaves out the blank behind a comma that ends a line.
  const std::string comma = layout.separators ? layout.separators->first : layout.indent ? "," : ", ";
  const std::string colon = layout.separators ? layout.separators->second : ": ";
  if (!costs.spend(sizeof(Value) + (value.text() != nullptr ? value.text()->size() : 0))) {
    return true;
  }
  if (value.none()) {
    result += "null";
  } else if (const bool* truth = value.as<bool>()) {
    result += *truth ? "true" : "false";
  } else if (const double* number = value.as<double>()) {
    const std::string shown = float_text(*number);
    result += shown == "nan" ? "NaN" : shown == "inf" ? "Infinity" : shown == "-inf" ? "-Infinity" : shown;
  } else if (const std::string* text = value.text()) {
    result += json_string(*text, layout.ascii);
  } else if (const List* list = value.list()) {
    result += '[';
    for (size_t i = 0; i < list->size(); ++i) {
      result += i > 0 ? comma : "";
      line(level + 1);
      if (!add_json(costs, (*list)[i], layout, level + 1, result)) {
        return false;
      }
    }
    if (!list->empty()) {
      line(level);
    }
    result += ']';
  } else if (const Dict* dict = value.dict()) {
    result += '{';
    dict->all_read = true;
    std::vector<const std::pair<std::string, Value>*> entries;
    entries.reserve(dict->entries.size());
    for (const auto& entry : dict->entries) {
      entries.push_back(&entry);
    }
    if (layout.sorted) {
      std::sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
    }
    for (size_t i = 0; i < entries.size(); ++i) {
      result += i > 0 ? comma : "";
      line(level + 1);
      result += json_string(entries[i]->first, layout.ascii) + colon;
      if (!add_json(costs, entries[i]->second, layout, level + 1, result)) {
        return false;
      }
    }
    if (!entries.empty()) {
      line(level);
    }
    result += '}';
  } else if (const auto whole = value.integer()) {
    result += std::to_string(*whole);
  } else {
    return false;
  }
  return true;
}

constexpr size_t kMostSpent = size_t{1} << 26;

}  // namespace

bool Costs::spend(size_t bytes) {
  spent_ += std::min(bytes, kMostSpent);
  if (spent_ > kMostSpent) {
    fail("more than it may use of memory and time");
  }
  return !failed();
}

Value Costs::fail(const std::string& problem) {
  problem_ = problem_ ? problem_ : problem;
  return {};
}

const Value* Dict::find(const std::string& key) const {
  read.insert(key);
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& one) { return one.first == key; });
  return found == entries.end() ? nullptr : &found->second;
}

void Dict::set(const std::string& key, Value value) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& one) { return one.first == key; });
  if (found == entries.end()) {
    entries.emplace_back(key, std::move(value));
  } else {
    found->second = std::move(value);
  }
}

Value::Value(List list) {
  for (const Value& one : list) {
    depth_ = std::max(depth_, one.depth_);
  }
  ++depth_;
  held_ = std::make_shared<const List>(std::move(list));
}

Value::Value(Dict dict) {
  for (const auto& entry : dict.entries) {
    depth_ = std::max(depth_, entry.second.depth_);
  }
  ++depth_;
  held_ = std::make_shared<const Dict>(std::move(dict));
}

const std::string* Value::text() const {
  const auto* held = as<std::shared_ptr<const std::string>>();
  return held == nullptr ? nullptr : held->get();
}

const List* Value::list() const {
  const auto* held = as<std::shared_ptr<const List>>();
  return held == nullptr ? nullptr : held->get();
}

const Dict* Value::dict() const {
  const auto* held = as<std::shared_ptr<const Dict>>();
  return held == nullptr ? nullptr : held->get();
}

Namespace* Value::name_space() const {
  const auto* held = as<std::shared_ptr<Namespace>>();
  return held == nullptr ? nullptr : held->get();
}

const Function* Value::function() const {
  const auto* held = as<std::shared_ptr<const Function>>();
  return held == nullptr ? nullptr : held->get();
}

std::optional<int64_t> Value::integer() const {
  if (const bool* truth = as<bool>()) {
    return *truth ? 1 : 0;
  }
  const int64_t* whole = as<int64_t>();
  return whole == nullptr ? std::nullopt : std::optional(*whole);
}

std::optional<double> Value::number() const {
  if (const double* value = as<double>()) {
    return *value;
  }
  const auto whole = integer();
  return whole ? std::optional(static_cast<double>(*whole)) : std::nullopt;
}

bool Value::truth() const {
  if (const auto value = number()) {
    return *value != 0;
  }
  if (const std::string* content = text()) {
    return !content->empty();
  }
  if (const List* items = list()) {
    return !items->empty();
  }
  if (const Dict* items = dict()) {
    return !items->entries.empty();
  }
  return !undefined() && !none();
}

Value from_json(const nlohmann::ordered_json& json) {
  if (json.is_boolean()) {
    return json.get<bool>();
  }
  if (json.is_number_integer() && !(json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX})) {
    return json.get<int64_t>();
  }
  if (json.is_number()) {
    return json.get<double>();
  }
  if (json.is_string()) {
    return json.get<std::string>();
  }
  if (json.is_array()) {
    List list;
    for (const auto& one : json) {
      list.push_back(from_json(one));
    }
    return list;
  }
  if (json.is_object()) {
    Dict dict;
    for (const auto& entry : json.items()) {
      dict.entries.emplace_back(entry.key(), from_json(entry.value()));
    }
    return dict;
  }
  return Value::Held(None{});
}

bool equal(Costs& costs, const Value& a, const Value& b) {
  if (!costs.spend(sizeof(Value))) {
    return false;
  }
  const auto numbers = std::pair(a.number(), b.number());
  if (numbers.first && numbers.second) {
    return a.integer() && b.integer() ? *a.integer() == *b.integer() : *numbers.first == *numbers.second;
  }
  if (a.text() != nullptr && b.text() != nullptr) {
    return a.text()->size() == b.text()->size() && costs.spend(a.text()->size()) && *a.text() == *b.text();
  }
  if (a.list() != nullptr && b.list() != nullptr) {
    return std::equal(a.list()->begin(), a.list()->end(), b.list()->begin(), b.list()->end(),
                      [&](const Value& one, const Value& other) { return equal(costs, one, other); });
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    const auto& entries = a.dict()->entries;
    return entries.size() == b.dict()->entries.size() &&
           std::all_of(entries.begin(), entries.end(), [&](const auto& one) {
             const Value* other = b.dict()->find(one.first);
             return other != nullptr && equal(costs, one.second, *other);
           });
  }
  return (a.none() && b.none()) || (a.undefined() && b.undefined()) ||
         (a.name_space() != nullptr && a.name_space() == b.name_space()) ||
         (a.function() != nullptr && a.function() == b.function());
}

std::optional<int> order(Costs& costs, const Value& a, const Value& b) {
  const auto numbers = std::pair(a.number(), b.number());
  if (!costs.spend(sizeof(Value))) {
    return std::nullopt;
  }
  if (numbers.first && numbers.second) {
    return *numbers.first < *numbers.second ? -1 : *numbers.first > *numbers.second ? 1 : 0;
  }
  if (a.text() != nullptr && b.text() != nullptr) {
    costs.spend(std::min(a.text()->size(), b.text()->size()));
    return a.text()->compare(*b.text());  // UTF-8 has the order of the characters
  }
  if (a.list() != nullptr && b.list() != nullptr) {
    const List& one = *a.list();
    const List& other = *b.list();
    for (size_t i = 0; i < std::min(one.size(), other.size()); ++i) {
      if (!equal(costs, one[i], other[i])) {
        return order(costs, one[i], other[i]);
      }
    }
    return one.size() < other.size() ? -1 : one.size() > other.size() ? 1 : 0;
  }
  return std::nullopt;
}

std::string written(Costs& costs, const Value& value) {
  return value.text() != nullptr ? *value.text() : value.undefined() ? "" : represented(costs, value);
}

std::string represented(Costs& costs, const Value& value) {
  if (!costs.spend(sizeof(Value) + (value.text() != nullptr ? value.text()->size() : 0))) {
    return "";
  }
  if (value.undefined()) {
    return "Undefined";
  }
  if (value.none()) {
    return "None";
  }
  if (const bool* truth = value.as<bool>()) {
    return *truth ? "True" : "False";
  }
  if (const double* number = value.as<double>()) {
    return float_text(*number);
  }
  if (const std::string* text = value.text()) {
    return quoted(*text);
  }
  std::string result;
  if (const List* list = value.list()) {
    for (const Value& one : *list) {
      result += (result.empty() ? "" : ", ") + represented(costs, one);
    }
    return "[" + result + "]";
  }
  if (const Dict* dict = value.dict()) {
    dict->all_read = true;
    for (const auto& [key, one] : dict->entries) {
      result += (result.empty() ? "" : ", ") + quoted(key) + ": " + represented(costs, one);
    }
    return "{" + result + "}";
  }
  if (value.name_space() != nullptr) {
    return "<Namespace>";
  }
  return value.function() != nullptr ? "<" + value.function()->name + ">" : std::to_string(*value.integer());
}

std::optional<std::string> json_text(Costs& costs, const Value& value, const JsonLayout& layout) {
  std::string result;
  return add_json(costs, value, layout, 0, result) ? std::optional(result) : std::nullopt;
}

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> result;
  for (size_t at = 0; at < text.size(); at += result.back().size()) {
    result.push_back(text.substr(at, character_bytes(text[at])));
  }
  return result;
}

}  // namespace zoexport::jinja
