// Functions that templates can call: Jinja's filters and tests, and the methods of Python's str and dict.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "session/chat/value.h"

namespace zoexport::jinja {

struct Arguments {
  List positional = {};
  std::vector<std::pair<std::string, Value>> named = {};

  // Return the argument by position or by name; null if it is not given.
  const Value* get(size_t place, const char* name) const;
  std::string text(size_t place, const char* name, const std::string& otherwise) const;
  // Bytes of all.
  size_t size() const;
  int64_t integer(size_t place, const char* name, int64_t otherwise) const;
};

bool known_filter(const std::string& name);
bool known_test(const std::string& name);
Value filtered(Costs& costs, const std::string& name, const Value& value, const Arguments& arguments);
bool tested(Costs& costs, const std::string& name, const Value& value, const Arguments& arguments);

// Return whether values of this kind have a method of this name.
bool has_method(const Value& value, const std::string& name);
Value method(Costs& costs, const Value& value, const std::string& name, const Arguments& arguments);

// Return the elements that a loop iterates over; fail if the value is not iterable.
List elements(Costs& costs, const Value& value);
bool contains(Costs& costs, const Value& container, const Value& value);
// Look up value.name or value['name'], except for methods.
Value attribute(const Value& value, const std::string& name);
Value item(Costs& costs, const Value& value, const Value& key);

}  // namespace zoexport::jinja
