#include "session/chat/functions.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>

#include "session/chat/texts.h"

namespace zoexport::jinja {
namespace {

constexpr size_t kOfElement = sizeof(Value);
constexpr size_t kLongestName = 60;  // of what is not there, for messages

std::string kind(const Value& value) {
  if (const auto* undefined = value.as<Undefined>()) {
    return "'" + undefined->name + "', which is undefined";
  }
  return value.none()              ? "None"
         : value.text() != nullptr ? "a text"
         : value.list() != nullptr ? "a list"
         : value.dict() != nullptr ? "a dict"
         : value.number()          ? "a number"
                                   : "a function or namespace";
}

Value missing(const std::string& name) { return Value::Held(Undefined{name.substr(0, kLongestName)}); }

Value made(Costs& costs, std::string text) { return costs.spend(text.size()) ? Value(std::move(text)) : Value(); }

Value made(Costs& costs, List list) { return costs.spend(list.size() * kOfElement) ? Value(std::move(list)) : Value(); }

// The tables of the session have no capital letters, which templates need for words of their own alone.
Value in_case(Costs& costs, const std::string& text, Case wanted) {
  if (!ascii(text)) {
    return costs.fail("capital letters of a text beyond ASCII");
  }
  std::string result = text;
  bool inside = false;
  for (char& one : result) {
    const bool letter = (one | 32) >= 'a' && (one | 32) <= 'z';
    const bool capital = wanted == Case::kUpper || !inside;
    if (letter) {
      one = static_cast<char>(capital ? one & ~32 : one | 32);
    }
    inside =
        wanted == Case::kCapital || (wanted == Case::kWords ? std::strchr("- \t\n\r\f\v({[<", one) == nullptr : letter);
  }
  return made(costs, result);
}

std::optional<std::string> optional_text(const Arguments& arguments, size_t place, const char* name) {
  const Value* found = arguments.get(place, name);
  return found == nullptr || found->text() == nullptr ? std::nullopt : std::optional(*found->text());
}

using Filter = Value (*)(Costs&, const Value&, const Arguments&);

Value length(Costs& costs, const Value& value, const Arguments&) {
  if (const std::string* text = value.text()) {
    return static_cast<int64_t>(count(*text));
  }
  if (const Dict* dict = value.dict()) {
    return static_cast<int64_t>(dict->entries.size());
  }
  return static_cast<int64_t>(elements(costs, value).size());
}

// The attribute of an element that a filter was given, such as "a.b", or else the element.
Value part(Costs& costs, const Value& value, const Value* path) {
  Value result = value;
  if (path != nullptr && path->text() != nullptr && costs.spend(path->text()->size())) {
    for (const Value& name : split(costs, *path->text(), ".", -1, false)) {
      const bool number = !name.text()->empty() && name.text()->find_first_not_of("0123456789") == std::string::npos;
      const int64_t index = number ? std::strtoll(name.text()->c_str(), nullptr, 10) : 0;
      result = number ? item(costs, result, index) : attribute(result, *name.text());
    }
  }
  return result;
}

Value join(Costs& costs, const Value& value, const Arguments& arguments) {
  std::string result;
  bool first = true;
  const std::string separator = arguments.text(0, "d", "");
  for (const Value& one : elements(costs, value)) {
    const std::string piece = written(costs, part(costs, one, arguments.get(1, "attribute")));
    if (!costs.spend(separator.size() + piece.size())) {
      break;
    }
    result += (first ? "" : separator) + piece;
    first = false;
  }
  return made(costs, result);
}

Value to_json(Costs& costs, const Value& value, const Arguments& arguments) {
  const auto flag = [&](size_t place, const char* name) {
    const Value* found = arguments.get(place, name);
    return found != nullptr && found->truth();
  };
  JsonLayout layout = {flag(0, "ensure_ascii"), std::nullopt, std::nullopt, flag(3, "sort_keys")};
  if (const Value* indent = arguments.get(1, "indent"); indent != nullptr && !indent->none()) {
    const int64_t width = std::clamp<int64_t>(indent->integer().value_or(0), 0, 64);
    layout.indent = indent->text() != nullptr ? *indent->text() : std::string(static_cast<size_t>(width), ' ');
  }
  if (const Value* given = arguments.get(2, "separators"); given != nullptr && given->list() != nullptr) {
    if (given->list()->size() != 2) {
      return costs.fail("other than two separators");
    }
    layout.separators.emplace(written(costs, (*given->list())[0]), written(costs, (*given->list())[1]));
  }
  const auto text = json_text(costs, value, layout);
  return text ? made(costs, *text) : costs.fail("tojson of " + kind(value));
}

Value indented(Costs& costs, const Value& value, const Arguments& arguments) {
  const Value* width = arguments.get(0, "width");
  const int64_t blanks = std::clamp<int64_t>(arguments.integer(0, "width", 4), 0, 64);
  const std::string indent =
      width != nullptr && width->text() != nullptr ? *width->text() : std::string(static_cast<size_t>(blanks), ' ');
  const Value* first = arguments.get(1, "first");
  const Value* empty = arguments.get(2, "blank");
  std::string result;
  bool begin = true;
  for (const Value& line : lines_of(costs, written(costs, value) + "\n")) {
    const bool indents =
        begin ? first != nullptr && first->truth() : !line.text()->empty() || (empty != nullptr && empty->truth());
    if (!costs.spend(line.text()->size() + indent.size())) {
      break;
    }
    result += (begin ? "" : "\n") + (indents ? indent : "") + *line.text();
    begin = false;
  }
  return made(costs, result);
}

Value sorted(Costs& costs, const Value& value, const Arguments& arguments) {
  List list = elements(costs, value);
  const Value* reverse = arguments.get(0, "reverse");
  const Value* case_sensitive = arguments.get(1, "case_sensitive");
  const bool exact = case_sensitive != nullptr && case_sensitive->truth();
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& one : list) {
    const Value key = part(costs, one, arguments.get(2, "attribute"));
    keyed.emplace_back(key.text() != nullptr && !exact ? Value(lower(*key.text())) : key, one);
  }
  for (size_t i = 1; i < keyed.size(); ++i) {
    if (!order(costs, keyed[0].first, keyed[i].first)) {
      return costs.fail("a sort of " + kind(keyed[0].first) + " and " + kind(keyed[i].first));
    }
  }
  const bool down = reverse != nullptr && reverse->truth();
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return order(costs, down ? b.first : a.first, down ? a.first : b.first).value_or(0) < 0;
  });
  for (size_t i = 0; i < list.size(); ++i) {
    list[i] = keyed[i].second;
  }
  return made(costs, std::move(list));
}

Value items(Costs& costs, const Value& value, const Arguments&) {
  List result;
  if (const Dict* dict = value.dict()) {
    dict->all_read = true;
    for (const auto& [key, one] : dict->entries) {
      result.push_back(List{key, one});
    }
  } else if (!value.undefined()) {
    return costs.fail("items of " + kind(value));
  }
  return made(costs, std::move(result));
}

Value dict_sorted(Costs& costs, const Value& value, const Arguments& arguments) {
  Arguments by = {{}, {{"attribute", arguments.text(1, "by", "key") == "value" ? "1" : "0"}}};
  if (const Value* exact = arguments.get(0, "case_sensitive")) {
    by.named.emplace_back("case_sensitive", *exact);
  }
  if (const Value* reverse = arguments.get(2, "reverse")) {
    by.named.emplace_back("reverse", *reverse);
  }
  return sorted(costs, items(costs, value, {}), by);
}

// map with a filter's name, or with attribute= and default=.
Value mapped(Costs& costs, const Value& value, const Arguments& arguments) {
  List result;
  const Value* path = arguments.get(SIZE_MAX, "attribute");
  const Value* otherwise = arguments.get(SIZE_MAX, "default");
  if (path == nullptr && (arguments.positional.empty() || !known_filter(written(costs, arguments.positional[0])))) {
    return costs.fail("map without an attribute or a filter");
  }
  for (const Value& one : elements(costs, value)) {
    if (path != nullptr) {
      const Value found = part(costs, one, path);
      result.push_back(found.undefined() && otherwise != nullptr ? *otherwise : found);
    } else {
      const auto& given = arguments.positional;
      result.push_back(
          filtered(costs, written(costs, given[0]), one, {{given.begin() + 1, given.end()}, arguments.named}));
    }
    if (costs.failed()) {
      break;
    }
  }
  return made(costs, std::move(result));
}

// select, reject, selectattr and rejectattr.
Value selected(Costs& costs, const Value& value, const Arguments& arguments, bool by_attribute, bool wanted) {
  const auto& given = arguments.positional;
  const size_t name = by_attribute ? 1 : 0;
  if (given.size() < name || (given.size() > name && !known_test(written(costs, given[name])))) {
    return costs.fail("select without an attribute or with an unknown test");
  }
  List result;
  for (const Value& one : elements(costs, value)) {
    const Value tried = by_attribute ? part(costs, one, given.data()) : one;
    const bool truth = given.size() <= name
                           ? tried.truth()
                           : tested(costs, written(costs, given[name]), tried,
                                    {{given.begin() + static_cast<ptrdiff_t>(name) + 1, given.end()}, {}});
    if (truth == wanted) {
      result.push_back(one);
    }
  }
  return made(costs, std::move(result));
}

// Return Python's int() of a number, or of any text that float() reads.
Value whole(Costs& costs, const Value& value, const Arguments& arguments) {
  double number = 0;
  if (const auto found = value.integer()) {
    return *found;
  }
  if (const double* found = value.as<double>()) {
    number = *found;
  } else {
    std::string text = cut(written(costs, value), std::nullopt, true, true);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    char* end = nullptr;
    const long long integer = std::strtoll(text.c_str(), &end, 10);
    if (text.empty() || text.find_first_not_of("0123456789+-.eE") != std::string::npos) {
      return arguments.integer(0, "default", 0);
    }
    if (*end == '\0') {
      return int64_t{integer};
    }
    number = std::strtod(text.c_str(), &end);
    if (*end != '\0') {
      return arguments.integer(0, "default", 0);
    }
  }
  return std::abs(number) < 9e18 ? Value(static_cast<int64_t>(number)) : costs.fail("a number beyond 64 bits");
}

Value otherwise(Costs&, const Value& value, const Arguments& arguments) {
  const Value* given = arguments.get(0, "default_value");
  const Value* falsy = arguments.get(1, "boolean");
  const bool absent = value.undefined() || (falsy != nullptr && falsy->truth() && !value.truth());
  return !absent ? value : given == nullptr ? Value("") : *given;
}

Value end_of(Costs& costs, const Value& value, bool first) {
  const List list = elements(costs, value);
  return list.empty() ? Value(Value::Held(Undefined{"an element of an empty list"}))
         : first      ? list.front()
                      : list.back();
}

const std::map<std::string, Filter>& filters() {
  static const auto* const known = new std::map<std::string, Filter>{
      {"capitalize", [](Costs& costs, const Value& value,
                        const Arguments&) { return in_case(costs, written(costs, value), Case::kCapital); }},
      {"count", length},
      {"d", otherwise},
      {"default", otherwise},
      {"dictsort", dict_sorted},
      {"first", [](Costs& costs, const Value& value, const Arguments&) { return end_of(costs, value, true); }},
      {"indent", indented},
      {"int", whole},
      {"items", items},
      {"join", join},
      {"last", [](Costs& costs, const Value& value, const Arguments&) { return end_of(costs, value, false); }},
      {"length", length},
      {"list", [](Costs& costs, const Value& value, const Arguments&) { return made(costs, elements(costs, value)); }},
      {"lower",
       [](Costs& costs, const Value& value, const Arguments&) { return made(costs, lower(written(costs, value))); }},
      {"map", mapped},
      {"reject", [](Costs& costs, const Value& value,
                    const Arguments& given) { return selected(costs, value, given, false, false); }},
      {"rejectattr", [](Costs& costs, const Value& value,
                        const Arguments& given) { return selected(costs, value, given, true, false); }},
      {"replace", [](Costs& costs, const Value& value,
                     const Arguments& given) { return method(costs, written(costs, value), "replace", given); }},
      {"safe", [](Costs&, const Value& value, const Arguments&) { return value; }},
      {"select", [](Costs& costs, const Value& value,
                    const Arguments& given) { return selected(costs, value, given, false, true); }},
      {"selectattr", [](Costs& costs, const Value& value,
                        const Arguments& given) { return selected(costs, value, given, true, true); }},
      {"sort", sorted},
      {"string", [](Costs& costs, const Value& value, const Arguments&) { return made(costs, written(costs, value)); }},
      {"title", [](Costs& costs, const Value& value,
                   const Arguments&) { return in_case(costs, written(costs, value), Case::kWords); }},
      {"tojson", to_json},
      {"trim",
       [](Costs& costs, const Value& value, const Arguments& given) {
         return made(costs, cut(written(costs, value), optional_text(given, 0, "chars"), true, true));
       }},
      {"upper", [](Costs& costs, const Value& value,
                   const Arguments&) { return in_case(costs, written(costs, value), Case::kUpper); }},
  };
  return *known;
}

using Test = bool (*)(Costs&, const Value&, const Value&);

bool compared(Costs& costs, const Value& a, const Value& b, bool (*holds)(int)) {
  const auto found = order(costs, a, b);
  if (!found) {
    costs.fail("a comparison of " + kind(a) + " and " + kind(b));
  }
  return found && holds(*found);
}

bool less(int found) { return found < 0; }
bool at_most(int found) { return found <= 0; }
bool more(int found) { return found > 0; }
bool at_least(int found) { return found >= 0; }

bool same(Costs& costs, const Value& a, const Value& b) { return equal(costs, a, b); }
bool differs(Costs& costs, const Value& a, const Value& b) { return !equal(costs, a, b); }

const std::map<std::string, Test>& tests() {
  static const auto* const known = new std::map<std::string, Test>{
      {"!=", differs},
      {"<", [](Costs& costs, const Value& a, const Value& b) { return compared(costs, a, b, less); }},
      {"<=", [](Costs& costs, const Value& a, const Value& b) { return compared(costs, a, b, at_most); }},
      {"==", same},
      {">", [](Costs& costs, const Value& a, const Value& b) { return compared(costs, a, b, more); }},
      {">=", [](Costs& costs, const Value& a, const Value& b) { return compared(costs, a, b, at_least); }},
      {"boolean", [](Costs&, const Value& a, const Value&) { return a.as<bool>() != nullptr; }},
      {"callable", [](Costs&, const Value& a, const Value&) { return a.function() != nullptr; }},
      {"defined", [](Costs&, const Value& a, const Value&) { return !a.undefined(); }},
      {"eq", same},
      {"equalto", same},
      {"false", [](Costs&, const Value& a, const Value&) { return a.as<bool>() != nullptr && !*a.as<bool>(); }},
      {"float", [](Costs&, const Value& a, const Value&) { return a.as<double>() != nullptr; }},
      {"ge", [](Costs& costs, const Value& a, const Value& b) { return compared(costs, a, b, at_least); }},
      {"greaterthan", [](Costs& costs, const Value& a, const Value& b) { return compared(costs, a, b, more); }},
      {"gt", [](Costs& costs, const Value& a, const Value& b) { return compared(costs, a, b, more); }},
      {"in", [](Costs& costs, const Value& a, const Value& b) { return contains(costs, b, a); }},
      {"integer", [](Costs&, const Value& a, const Value&) { return a.as<int64_t>() != nullptr; }},
      {"iterable",
       [](Costs&, const Value& a, const Value&) {
         return a.undefined() || a.text() != nullptr || a.list() != nullptr || a.dict() != nullptr;
       }},
      {"le", [](Costs& costs, const Value& a, const Value& b) { return compared(costs, a, b, at_most); }},
      {"lessthan", [](Costs& costs, const Value& a, const Value& b) { return compared(costs, a, b, less); }},
      {"lt", [](Costs& costs, const Value& a, const Value& b) { return compared(costs, a, b, less); }},
      {"mapping", [](Costs&, const Value& a, const Value&) { return a.dict() != nullptr; }},
      {"ne", differs},
      {"none", [](Costs&, const Value& a, const Value&) { return a.none(); }},
      {"number", [](Costs&, const Value& a, const Value&) { return a.number().has_value(); }},
      {"sequence",
       [](Costs&, const Value& a, const Value&) {
         return a.undefined() || a.text() != nullptr || a.list() != nullptr || a.dict() != nullptr;
       }},
      {"string", [](Costs&, const Value& a, const Value&) { return a.text() != nullptr; }},
      {"true", [](Costs&, const Value& a, const Value&) { return a.as<bool>() != nullptr && *a.as<bool>(); }},
      {"undefined", [](Costs&, const Value& a, const Value&) { return a.undefined(); }},
  };
  return *known;
}

Value of_dict(Costs& costs, const Value& value, const std::string& name, const Arguments& arguments) {
  const Dict& dict = *value.dict();
  if (name == "get") {
    const Value* key = arguments.get(0, "key");
    const Value* found = key == nullptr || key->text() == nullptr ? nullptr : dict.find(*key->text());
    const Value* given = arguments.get(1, "default");
    return found != nullptr ? *found : given != nullptr ? *given : Value(Value::Held(None{}));
  }
  if (name == "items") {
    return items(costs, value, {});
  }
  List result;
  dict.all_read = dict.all_read || name == "values";
  for (const auto& [key, one] : dict.entries) {
    result.push_back(name == "keys" ? Value(key) : one);
  }
  return made(costs, std::move(result));
}

bool begins(const std::string& text, const std::string& with) { return text.compare(0, with.size(), with) == 0; }
bool ends(const std::string& text, const std::string& with) {
  return text.size() >= with.size() && text.compare(text.size() - with.size(), with.size(), with) == 0;
}

// Return whether `holds` is true for any argument, for startswith and endswith.
bool any_of(Costs& costs, const Arguments& arguments, const std::string& text,
            bool (*holds)(const std::string&, const std::string&)) {
  const Value* given = arguments.get(0, "prefix");
  if (given != nullptr && given->list() != nullptr) {
    return std::any_of(given->list()->begin(), given->list()->end(),
                       [&](const Value& one) { return holds(text, written(costs, one)); });
  }
  return given != nullptr && holds(text, written(costs, *given));
}

using Method = Value (*)(Costs&, const std::string&, const Arguments&);

Value find(Costs&, const std::string& text, const Arguments& given) {
  const size_t found = text.find(given.text(0, "sub", ""));
  return found == std::string::npos ? int64_t{-1} : static_cast<int64_t>(count(text.substr(0, found)));
}

Value splits(Costs& costs, const std::string& text, const Arguments& given, bool right) {
  const auto separator = optional_text(given, 0, "sep");
  if (separator && separator->empty()) {
    return costs.fail("a split at an empty text");
  }
  return Value(split(costs, text, separator, given.integer(1, "maxsplit", -1), right));
}

const std::map<std::string, Method>& methods() {
  static const auto* const known = new std::map<std::string, Method>{
      {"capitalize",
       [](Costs& costs, const std::string& text, const Arguments&) { return in_case(costs, text, Case::kCapital); }},
      {"count",
       [](Costs& costs, const std::string& text, const Arguments& given) -> Value {
         const std::string sub = given.text(0, "sub", "");
         return sub.empty() ? costs.fail("the count of an empty text")
                            : Value(static_cast<int64_t>(split(costs, text, sub, -1, false).size()) - 1);
       }},
      {"endswith", [](Costs& costs, const std::string& text,
                      const Arguments& given) { return Value(any_of(costs, given, text, ends)); }},
      {"find", find},
      {"index",
       [](Costs& costs, const std::string& text, const Arguments& given) {
         const Value found = find(costs, text, given);
         return *found.integer() < 0 ? costs.fail("the index of a text that is not there") : found;
       }},
      {"join",
       [](Costs& costs, const std::string& text, const Arguments& given) {
         return join(costs, given.positional.empty() ? Value() : given.positional[0], {{text}, {}});
       }},
      {"lower", [](Costs& costs, const std::string& text, const Arguments&) { return made(costs, lower(text)); }},
      {"lstrip",
       [](Costs& costs, const std::string& text, const Arguments& given) {
         return made(costs, cut(text, optional_text(given, 0, "chars"), true, false));
       }},
      {"removeprefix",
       [](Costs& costs, const std::string& text, const Arguments& given) {
         const std::string part = given.text(0, "prefix", "");
         return made(costs, begins(text, part) ? text.substr(part.size()) : text);
       }},
      {"removesuffix",
       [](Costs& costs, const std::string& text, const Arguments& given) {
         const std::string part = given.text(0, "suffix", "");
         return made(costs, ends(text, part) ? text.substr(0, text.size() - part.size()) : text);
       }},
      {"replace",
       [](Costs& costs, const std::string& text, const Arguments& given) -> Value {
         const std::string with = given.text(1, "new", "");
         const std::string old = given.text(0, "old", "");
         const size_t times = old.empty() ? text.size() + 1 : text.size() / old.size();
         return costs.spend(times * with.size()) ? made(costs, replaced(text, old, with, given.integer(2, "count", -1)))
                                                 : Value();
       }},
      {"rsplit",
       [](Costs& costs, const std::string& text, const Arguments& given) { return splits(costs, text, given, true); }},
      {"rstrip",
       [](Costs& costs, const std::string& text, const Arguments& given) {
         return made(costs, cut(text, optional_text(given, 0, "chars"), false, true));
       }},
      {"split",
       [](Costs& costs, const std::string& text, const Arguments& given) { return splits(costs, text, given, false); }},
      {"splitlines",
       [](Costs& costs, const std::string& text, const Arguments&) { return Value(lines_of(costs, text)); }},
      {"startswith", [](Costs& costs, const std::string& text,
                        const Arguments& given) { return Value(any_of(costs, given, text, begins)); }},
      {"strip",
       [](Costs& costs, const std::string& text, const Arguments& given) {
         return made(costs, cut(text, optional_text(given, 0, "chars"), true, true));
       }},
      {"title",
       [](Costs& costs, const std::string& text, const Arguments&) { return in_case(costs, text, Case::kTitle); }},
      {"upper",
       [](Costs& costs, const std::string& text, const Arguments&) { return in_case(costs, text, Case::kUpper); }},
  };
  return *known;
}

// Spend the worst-case cost of a search for each of the arguments in a text.
bool spend_on(Costs& costs, const Value& value, const Arguments& arguments) {
  const size_t bytes = value.text() != nullptr ? value.text()->size() : 0;
  return costs.spend(bytes + arguments.size()) && costs.spend(bytes / 256 * arguments.size());
}

}  // namespace

const Value* Arguments::get(size_t place, const char* name) const {
  if (place < positional.size()) {
    return &positional[place];
  }
  const auto found = std::find_if(named.begin(), named.end(), [&](const auto& one) { return one.first == name; });
  return found == named.end() ? nullptr : &found->second;
}

std::string Arguments::text(size_t place, const char* name, const std::string& otherwise) const {
  const Value* found = get(place, name);
  if (found == nullptr) {
    return otherwise;
  }
  return found->text() != nullptr ? *found->text() : found->integer() ? std::to_string(*found->integer()) : "";
}

size_t Arguments::size() const {
  size_t bytes = 0;
  for (const Value& one : positional) {
    bytes += one.text() != nullptr ? one.text()->size() : 0;
  }
  for (const auto& one : named) {
    bytes += one.second.text() != nullptr ? one.second.text()->size() : 0;
  }
  return bytes;
}

int64_t Arguments::integer(size_t place, const char* name, int64_t otherwise) const {
  const Value* found = get(place, name);
  return found == nullptr ? otherwise : found->integer().value_or(otherwise);
}

bool known_filter(const std::string& name) { return filters().count(name) > 0; }
bool known_test(const std::string& name) { return tests().count(name) > 0; }

Value filtered(Costs& costs, const std::string& name, const Value& value, const Arguments& arguments) {
  // A method goes over its text, and an argument may be looked for in it.
  return spend_on(costs, value, arguments) ? filters().at(name)(costs, value, arguments) : Value();
}

bool tested(Costs& costs, const std::string& name, const Value& value, const Arguments& arguments) {
  if (!spend_on(costs, value, arguments)) {
    return false;
  }
  const Value* other = arguments.get(0, "other");
  return tests().at(name)(costs, value, other == nullptr ? Value() : *other);
}

bool has_method(const Value& value, const std::string& name) {
  return (value.text() != nullptr && methods().count(name) > 0) ||
         (value.dict() != nullptr && (name == "get" || name == "items" || name == "keys" || name == "values"));
}

Value method(Costs& costs, const Value& value, const std::string& name, const Arguments& arguments) {
  if (!spend_on(costs, value, arguments)) {
    return {};
  }
  return value.dict() != nullptr ? of_dict(costs, value, name, arguments)
                                 : methods().at(name)(costs, *value.text(), arguments);
}

List elements(Costs& costs, const Value& value) {
  List result;
  if (const List* list = value.list()) {
    if (costs.spend(list->size() * kOfElement)) {
      result = *list;
    }
    return result;
  }
  if (const Dict* dict = value.dict()) {
    for (const auto& entry : dict->entries) {
      result.emplace_back(entry.first);
    }
  } else if (const std::string* text = value.text()) {
    if (costs.spend(text->size() * kOfPart)) {
      for (std::string& one : characters(*text)) {
        result.emplace_back(std::move(one));
      }
    }
  } else if (!value.undefined()) {
    costs.fail("a loop over " + kind(value));
  }
  costs.spend(result.size() * kOfElement);
  return result;
}

bool contains(Costs& costs, const Value& container, const Value& value) {
  if (const std::string* text = container.text()) {
    if (!spend_on(costs, container, {{value}, {}})) {
      return false;
    }
    if (value.text() == nullptr) {
      costs.fail(kind(value) + " in a text");
    }
    return value.text() != nullptr && text->find(*value.text()) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) {
    return value.text() != nullptr && dict->find(*value.text()) != nullptr;
  }
  const List list = elements(costs, container);
  return std::any_of(list.begin(), list.end(), [&](const Value& one) { return equal(costs, one, value); });
}

Value attribute(const Value& value, const std::string& name) {
  const Dict* dict = value.name_space() != nullptr ? &value.name_space()->attributes : value.dict();
  const Value* found = dict == nullptr ? nullptr : dict->find(name);
  return found == nullptr ? missing(name) : *found;
}

Value item(Costs& costs, const Value& value, const Value& key) {
  if (value.undefined()) {
    return costs.fail("an element of " + kind(value));
  }
  if (key.text() != nullptr) {
    return attribute(value, *key.text());
  }
  const auto place = key.integer();
  if (place && (value.list() != nullptr || value.text() != nullptr)) {
    const auto size = static_cast<int64_t>(value.list() != nullptr ? value.list()->size() : count(*value.text()));
    const int64_t at = *place < 0 ? *place + size : *place;
    if (at >= 0 && at < size && value.list() != nullptr) {
      return (*value.list())[static_cast<size_t>(at)];
    }
    if (at >= 0 && at < size && costs.spend(value.text()->size())) {
      return character(*value.text(), static_cast<size_t>(at));
    }
  }
  return missing(written(costs, key));
}

}  // namespace zoexport::jinja
