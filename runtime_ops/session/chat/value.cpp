#include "session/chat/value.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "session/text/utf8.h"

namespace zoexport::jinja {
namespace {

// As Python's repr: the fewest digits that are read back as the same number.
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
      const std::string shown = digits;
      const size_t mark = shown.find('e');
      const int exponent = std::atoi(shown.c_str() + mark + 1);
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
  for (const char one : text) {
    const auto byte = static_cast<unsigned char>(one);
    if (one == '\n' || one == '\r' || one == '\t') {
      result += one == '\n' ? "\\n" : one == '\r' ? "\\r" : "\\t";
    } else if (one == '\\' || one == mark) {
      result += {'\\', one};
    } else if (byte < 0x20 || byte == 0x7F) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\x%02x", byte);
      result += code;
    } else {
      result += one;
    }
  }
  return result + mark;
}

struct JsonLayout {
  int64_t indent;
  const std::string& item_separator;
  const std::string& key_separator;
};

bool add_json(const Value& value, const JsonLayout& layout, int64_t level, std::string& result) {
  const auto line = [&](int64_t depth) {
    if (layout.indent >= 0) {
      result += "\n" + std::string(static_cast<size_t>(layout.indent * depth), ' ');
    }
  };
  // json.dumps leaves out the blank behind a comma that ends a line.
  const std::string comma = layout.indent >= 0 && layout.item_separator == ", " ? "," : layout.item_separator;
  if (value.none()) {
    result += "null";
  } else if (const bool* truth = value.as<bool>()) {
    result += *truth ? "true" : "false";
  } else if (const double* number = value.as<double>()) {
    const std::string shown = float_text(*number);
    result += shown == "nan" ? "NaN" : shown == "inf" ? "Infinity" : shown == "-inf" ? "-Infinity" : shown;
  } else if (const std::string* text = value.text()) {
    result += nlohmann::json(*text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  } else if (const List* list = value.list()) {
    result += "[";
    for (size_t i = 0; i < list->size(); ++i) {
      result += i > 0 ? comma : "";
      line(level + 1);
      if (!add_json((*list)[i], layout, level + 1, result)) {
        return false;
      }
    }
    if (!list->empty()) {
      line(level);
    }
    result += "]";
  } else if (const Dict* dict = value.dict()) {
    result += "{";
    dict->all_read = true;
    for (size_t i = 0; i < dict->entries.size(); ++i) {
      result += i > 0 ? comma : "";
      line(level + 1);
      result += nlohmann::json(dict->entries[i].first).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      result += layout.key_separator;
      if (!add_json(dict->entries[i].second, layout, level + 1, result)) {
        return false;
      }
    }
    if (!dict->entries.empty()) {
      line(level);
    }
    result += "}";
  } else if (const auto whole = value.integer()) {
    result += std::to_string(*whole);
  } else {
    return false;
  }
  return true;
}

}  // namespace

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

bool equal(const Value& a, const Value& b) {
  const auto numbers = std::pair(a.number(), b.number());
  if (numbers.first && numbers.second) {
    return a.integer() && b.integer() ? *a.integer() == *b.integer() : *numbers.first == *numbers.second;
  }
  if (a.text() != nullptr && b.text() != nullptr) {
    return *a.text() == *b.text();
  }
  if (a.list() != nullptr && b.list() != nullptr) {
    return std::equal(a.list()->begin(), a.list()->end(), b.list()->begin(), b.list()->end(), equal);
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    const auto& entries = a.dict()->entries;
    return entries.size() == b.dict()->entries.size() &&
           std::all_of(entries.begin(), entries.end(), [&](const auto& one) {
             const Value* other = b.dict()->find(one.first);
             return other != nullptr && equal(one.second, *other);
           });
  }
  return (a.none() && b.none()) || (a.undefined() && b.undefined()) ||
         (a.name_space() != nullptr && a.name_space() == b.name_space()) ||
         (a.function() != nullptr && a.function() == b.function());
}

std::optional<int> order(const Value& a, const Value& b) {
  const auto numbers = std::pair(a.number(), b.number());
  if (numbers.first && numbers.second) {
    return *numbers.first < *numbers.second ? -1 : *numbers.first > *numbers.second ? 1 : 0;
  }
  if (a.text() != nullptr && b.text() != nullptr) {
    return a.text()->compare(*b.text());  // UTF-8 has the order of the characters
  }
  if (a.list() != nullptr && b.list() != nullptr) {
    const List& one = *a.list();
    const List& other = *b.list();
    for (size_t i = 0; i < std::min(one.size(), other.size()); ++i) {
      if (!equal(one[i], other[i])) {
        return order(one[i], other[i]);
      }
    }
    return one.size() < other.size() ? -1 : one.size() > other.size() ? 1 : 0;
  }
  return std::nullopt;
}

std::string written(const Value& value) {
  return value.text() != nullptr ? *value.text() : value.undefined() ? "" : represented(value);
}

std::string represented(const Value& value) {
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
      result += (result.empty() ? "" : ", ") + represented(one);
    }
    return "[" + result + "]";
  }
  if (const Dict* dict = value.dict()) {
    dict->all_read = true;
    for (const auto& [key, one] : dict->entries) {
      result += (result.empty() ? "" : ", ") + quoted(key) + ": " + represented(one);
    }
    return "{" + result + "}";
  }
  if (value.name_space() != nullptr) {
    return "<Namespace>";
  }
  return value.function() != nullptr ? "<" + value.function()->name + ">" : std::to_string(*value.integer());
}

std::optional<std::string> json_text(const Value& value, int64_t indent, const std::string& item_separator,
                                     const std::string& key_separator) {
  std::string result;
  return add_json(value, {indent, item_separator, key_separator}, 0, result) ? std::optional(result) : std::nullopt;
}

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> result;
  for (size_t at = 0; at < text.size(); at += result.back().size()) {
    result.push_back(text.substr(at, character_bytes(text[at])));
  }
  return result;
}

}  // namespace zoexport::jinja
