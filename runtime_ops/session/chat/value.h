// Values of a chat template: those of Python that Jinja's templates see.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace zoexport::jinja {

class Value;
struct Node;
struct Scope;

using List = std::vector<Value>;

// Cost of rendering a template so far, and its first failure, after which its result is not used.
class Costs {
 public:
  // Bytes of what was made or read; false once there is a failure.
  bool spend(size_t bytes);
  Value fail(const std::string& problem);
  bool failed() const { return problem_.has_value(); }
  const std::string& problem() const { return *problem_; }

 private:
  size_t spent_ = 0;
  std::optional<std::string> problem_;
};

struct Undefined {
  std::string name;  // of what is not there
};
struct None {};

// In the order of insertion, as Python's.
struct Dict {
  std::vector<std::pair<std::string, Value>> entries;
  mutable std::set<std::string> read;  // keys that a template has asked for
  mutable bool all_read = false;       // whether it has asked for all of them at once

  const Value* find(const std::string& key) const;
  void set(const std::string& key, Value value);
};

// Attributes that `set` can change.
struct Namespace {
  Dict attributes;
};

// A function of Jinja or transformers, a method of a value, or a macro.
struct Function {
  std::string name;
  std::shared_ptr<const Value> self;  // of a method
  const Node* macro = nullptr;
  Scope* scope = nullptr;  // in which the macro was defined
};

class Value {
 public:
  using Held = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>,
                            std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                            std::shared_ptr<const Function>>;

  Value() : held_(Undefined{}) {}
  Value(Held held) : held_(std::move(held)) {}  // NOLINT: held values are values
  Value(std::string text) : held_(std::make_shared<const std::string>(std::move(text))) {}  // NOLINT
  Value(const char* text) : Value(std::string(text)) {}                                     // NOLINT
  Value(bool value) : held_(value) {}                                                       // NOLINT
  Value(int64_t value) : held_(value) {}                                                    // NOLINT
  Value(double value) : held_(value) {}                                                     // NOLINT
  Value(List list);                                                                         // NOLINT
  Value(Dict dict);                                                                         // NOLINT

  template <typename T>
  const T* as() const {
    return std::get_if<T>(&held_);
  }
  bool undefined() const { return as<Undefined>() != nullptr; }
  bool none() const { return as<None>() != nullptr; }
  const std::string* text() const;
  const List* list() const;
  const Dict* dict() const;
  Namespace* name_space() const;
  const Function* function() const;
  std::optional<int64_t> integer() const;  // also true and false, which are numbers
  std::optional<double> number() const;

  bool truth() const;
  int depth() const { return depth_; }  // lists and dicts inside one another

 private:
  Held held_;
  int depth_ = 0;
};

Value from_json(const nlohmann::ordered_json& json);

bool equal(Costs& costs, const Value& a, const Value& b);
// Return a number below 0, 0 or above 0; nothing if the two cannot be compared.
std::optional<int> order(Costs& costs, const Value& a, const Value& b);

// Return Python's str() and repr().
std::string written(Costs& costs, const Value& value);
std::string represented(Costs& costs, const Value& value);
// Format of json.dumps.
struct JsonLayout {
  bool ascii = false;                 // other characters as \u....
  std::optional<std::string> indent;  // of a level; without it, all is on one line
  std::optional<std::pair<std::string, std::string>> separators;
  bool sorted = false;  // by keys
};
// Nothing for what is no JSON.
std::optional<std::string> json_text(Costs& costs, const Value& value, const JsonLayout& layout);

// The characters of a text, each as a text.
std::vector<std::string> characters(const std::string& text);

}  // namespace zoexport::jinja
