#include "session/chat/template.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <list>
#include <locale>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "session/chat/functions.h"

namespace zoexport::jinja {

// Names of a template, a macro's call, or one turn of a loop.
struct Scope {
  std::map<std::string, Value> names;
  Scope* outer = nullptr;

  const Value* find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer) {
      if (const auto found = scope->names.find(name); found != scope->names.end()) {
        return &found->second;
      }
    }
    return nullptr;
  }
};

namespace {

constexpr int kMostNested = 300;  // nodes inside one another, through macros too
constexpr int kMostOfValues = 64;
constexpr size_t kLongestDate = 100;
constexpr int64_t kLongestRange = 100000;
constexpr size_t kOfScope = 256;
constexpr size_t kOfNode = 16;  // cost of one step, without the values that it makes

// Format a date like strftime in the C locale, as hosts may set their own locale. `%-d` drops the leading zero.
std::string date_text(const std::string& format, std::time_t now) {
  std::tm local = {};
  ::localtime_r(&now, &local);
  std::string text;
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%' || at + 1 == format.size()) {
      text += format[at];
      continue;
    }
    ++at;
    const bool padded = format[at] != '-';
    at += padded ? 0 : 1;
    const char code[] = {'%', format[std::min(at, format.size() - 1)], '\0'};
    std::ostringstream part;
    part.imbue(std::locale::classic());
    part << std::put_time(&local, code);
    const size_t zeros = padded ? 0 : std::min(part.str().find_first_not_of("0 "), part.str().size() - 1);
    text += part.str().substr(std::min(zeros, part.str().size()));
  }
  return text;
}

bool storable(const Value& value) { return value.name_space() == nullptr; }

class Run {
 public:
  explicit Run(std::time_t now) : now_(now) {}

  Result<Rendered> render(const Nodes& body, const Dict& variables) {
    scopes_.emplace_back();
    scope_ = &scopes_.back();
    for (const auto& [name, value] : variables.entries) {
      scope_->names.emplace(name, value);
    }
    variables_ = &variables;
    run(body);
    if (costs_.failed()) {
      if (refused_) {
        return Failure{ZO_DATA_ERROR, "messages", costs_.problem(), "what the model's chat template takes",
                       "Correct the messages: the template refuses them with these words."};
      }
      return Failure{ZO_DATA_ERROR, "chat template", costs_.problem(), "messages that it can write",
                     "Correct the messages, or compile the model with another chat template."};
    }
    return std::move(rendered_);
  }

 private:
  enum class Flow { kOn, kBreak, kContinue };

  // Nodes inside one another.
  class Level {
   public:
    explicit Level(Run* run) : run_(run) {
      if (++run_->level_ > kMostNested) {
        run_->costs_.fail("macros that call one another without an end");
      }
    }
    ~Level() { --run_->level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Run* run_;
  };

  class Inner {
   public:
    Inner(Run* run, Scope* outer) : run_(run), before_(run->scope_) {
      run_->costs_.spend(kOfScope);
      mine_ = run_->scopes_.insert(run_->scopes_.end(), {{}, outer});
      run_->scope_ = &*mine_;
    }
    ~Inner() {
      if (run_->kept_.count(run_->scope_) == 0) {
        run_->scopes_.erase(mine_);
      }
      run_->scope_ = before_;
    }
    Inner(const Inner&) = delete;
    Inner& operator=(const Inner&) = delete;

   private:
    Run* run_;
    Scope* before_;
    std::list<Scope>::iterator mine_;
  };

  void write(const std::string& text) {
    if (costs_.spend(text.size())) {
      rendered_.text += text;
    }
  }

  Flow run(const Nodes& body) {
    for (const auto& node : body) {
      if (costs_.failed()) {
        break;
      }
      const Flow flow = run(*node);
      if (flow != Flow::kOn) {
        return flow;
      }
    }
    return Flow::kOn;
  }

  Flow run(const Node& node) {
    const Level level(this);
    if (!costs_.spend(kOfNode)) {
      return Flow::kOn;
    }
    switch (node.kind) {
      case Kind::kText:
        write(node.text);
        break;
      case Kind::kPrint:
        write(written(costs_, value_of(*node.nodes[0])));
        break;
      case Kind::kIf:
        return run(value_of(*node.nodes[0]).truth() ? node.body : node.otherwise);
      case Kind::kFor:
        return loop(node);
      case Kind::kSet:
        assign(node, value_of(*node.nodes[0]));
        break;
      case Kind::kSetBlock: {
        const std::string text = captured(node.body);
        assign(node, node.nodes[0] == nullptr ? Value(text) : piped(*node.nodes[0], text));
        break;
      }
      case Kind::kMacro:
        for (const Scope* scope = scope_; scope != nullptr; scope = scope->outer) {
          kept_.insert(scope);
        }
        scope_->names[node.text] =
            Value(Value::Held(std::make_shared<const Function>(Function{node.text, nullptr, &node, scope_})));
        break;
      case Kind::kFilterBlock:
        write(written(costs_, piped(*node.nodes[0], captured(node.body))));
        break;
      case Kind::kGeneration: {
        const Inner inner(this, scope_);
        const size_t begin = rendered_.text.size();
        const Flow flow = run(node.body);
        if (captures_ == 0) {
          rendered_.generated.emplace_back(begin, rendered_.text.size());
        }
        return flow;
      }
      case Kind::kBreak:
        return Flow::kBreak;
      case Kind::kContinue:
        return Flow::kContinue;
      default:
        break;
    }
    return Flow::kOn;
  }

  std::string captured(const Nodes& body) {
    const Inner inner(this, scope_);
    std::string outer = std::exchange(rendered_.text, "");
    ++captures_;
    run(body);
    --captures_;
    return std::exchange(rendered_.text, std::move(outer));
  }

  // The filters of a block, which are around nothing.
  Value piped(const Node& node, const std::string& text) {
    const Value input = node.nodes[0] == nullptr ? Value(text) : piped(*node.nodes[0], text);
    return filtered(costs_, node.text, input, arguments(node));
  }

  void assign(const Node& node, const Value& value) {
    if (!node.text.empty()) {
      const Value* found = scope_->find(node.names[0]);
      Namespace* changed = found == nullptr ? nullptr : found->name_space();
      if (changed == nullptr || !storable(value)) {
        costs_.fail("a value set in '" + node.names[0] + "', which is no namespace, or a namespace set in another");
        return;
      }
      changed->attributes.set(node.text, value);
      return;
    }
    unpack(node.names, value);
  }

  void unpack(const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) {
      scope_->names[names[0]] = value;
      return;
    }
    const List parts = elements(costs_, value);
    if (parts.size() != names.size()) {
      costs_.fail(std::to_string(parts.size()) + " values for " + std::to_string(names.size()) + " names");
      return;
    }
    for (size_t i = 0; i < names.size(); ++i) {
      scope_->names[names[i]] = parts[i];
    }
  }

  Flow loop(const Node& node) {
    List list = elements(costs_, value_of(*node.nodes[0]));
    if (node.nodes[1] != nullptr) {
      List kept;
      for (const Value& one : list) {
        const Inner inner(this, scope_);
        unpack(node.names, one);
        if (value_of(*node.nodes[1]).truth()) {
          kept.push_back(one);
        }
      }
      list = std::move(kept);
    }
    const auto count = static_cast<int64_t>(list.size());
    ++loops_;
    bool whole = false;  // whether a turn came to its end, without which Jinja runs what stands behind else
    for (int64_t i = 0; i < count && !costs_.failed(); ++i) {
      const auto at = static_cast<size_t>(i);
      const Inner inner(this, scope_);
      Dict state;
      state.entries = {{"index", i + 1},        {"index0", i},
                       {"revindex", count - i}, {"revindex0", count - i - 1},
                       {"first", i == 0},       {"last", i + 1 == count},
                       {"length", count},       {"depth", loops_},
                       {"depth0", loops_ - 1}};
      if (i > 0) {
        state.entries.emplace_back("previtem", list[at - 1]);
      }
      if (i + 1 < count) {
        state.entries.emplace_back("nextitem", list[at + 1]);
      }
      scope_->names["loop"] = Value(std::move(state));
      unpack(node.names, list[at]);
      const Flow flow = run(node.body);
      whole = whole || flow == Flow::kOn;
      if (flow == Flow::kBreak) {
        break;
      }
    }
    --loops_;
    return whole ? Flow::kOn : run(node.otherwise);
  }

  Value value_of(const Node& node) {
    const Level level(this);
    if (!costs_.spend(kOfNode)) {
      return {};
    }
    Value value = calculated(node);
    return value.depth() > kMostOfValues ? costs_.fail("lists inside one another without an end") : value;
  }

  Value calculated(const Node& node) {
    switch (node.kind) {
      case Kind::kConstant:
        return node.value;
      case Kind::kName:
        return named(node.text);
      case Kind::kList: {
        List list;
        for (const auto& one : node.nodes) {
          list.push_back(stored(*one));
        }
        costs_.spend(list.size() * sizeof(Value));
        return list;
      }
      case Kind::kDict:
        return dict(node);
      case Kind::kAttribute:
        return member(value_of(*node.nodes[0]), node.text);
      case Kind::kItem: {
        const Value base = value_of(*node.nodes[0]);
        return item(costs_, base, value_of(*node.nodes[1]));
      }
      case Kind::kSlice:
        return slice(node);
      case Kind::kCall:
        return call(node);
      case Kind::kFilter: {
        const Value input = value_of(*node.nodes[0]);
        return filtered(costs_, node.text, input, arguments(node));
      }
      case Kind::kTest: {
        const Value input = value_of(*node.nodes[0]);
        return tested(costs_, node.text, input, arguments(node));
      }
      case Kind::kNot:
        return !value_of(*node.nodes[0]).truth();
      case Kind::kSign:
        return node.text == "-" ? binary("-", int64_t{0}, value_of(*node.nodes[0])) : value_of(*node.nodes[0]);
      case Kind::kAnd: {
        const Value first = value_of(*node.nodes[0]);
        return first.truth() ? value_of(*node.nodes[1]) : first;
      }
      case Kind::kOr: {
        const Value first = value_of(*node.nodes[0]);
        return first.truth() ? first : value_of(*node.nodes[1]);
      }
      case Kind::kCompare:
        return comparison(node);
      case Kind::kConcatenation: {
        std::string text;
        for (const auto& one : node.nodes) {
          text += written(costs_, value_of(*one));
          if (!costs_.spend(text.size())) {
            break;
          }
        }
        return text;
      }
      case Kind::kChoice:
        if (value_of(*node.nodes[0]).truth()) {
          return value_of(*node.nodes[1]);
        }
        return node.nodes[2] == nullptr ? Value() : value_of(*node.nodes[2]);
      default: {
        const Value first = value_of(*node.nodes[0]);
        return binary(node.text, first, value_of(*node.nodes[1]));
      }
    }
  }

  Value stored(const Node& node) {
    Value value = value_of(node);
    return storable(value) ? value : costs_.fail("a namespace inside a list, a dict or another");
  }

  Value named(const std::string& name) {
    variables_->read.insert(name);
    if (const Value* found = scope_->find(name)) {
      return *found;
    }
    for (const char* const global : {"range", "namespace", "dict", "raise_exception", "strftime_now"}) {
      if (name == global) {
        return Value(Value::Held(std::make_shared<const Function>(Function{name, nullptr, nullptr, nullptr})));
      }
    }
    return Value(Value::Held(Undefined{name}));
  }

  Value dict(const Node& node) {
    Dict result;
    for (size_t i = 0; i + 1 < node.nodes.size(); i += 2) {
      const Value key = value_of(*node.nodes[i]);
      if (key.text() == nullptr) {
        return costs_.fail("a key that is no text");
      }
      result.set(*key.text(), stored(*node.nodes[i + 1]));
    }
    costs_.spend(result.entries.size() * sizeof(Value));
    return result;
  }

  Value member(const Value& base, const std::string& name) {
    if (const auto* undefined = base.as<Undefined>()) {
      return costs_.fail("'" + name + "' of '" + undefined->name + "', which is undefined");
    }
    if (has_method(base, name)) {
      return Value(Value::Held(
          std::make_shared<const Function>(Function{name, std::make_shared<const Value>(base), nullptr, nullptr})));
    }
    return attribute(base, name);
  }

  Value slice(const Node& node) {
    const Value base = value_of(*node.nodes[0]);
    if (base.text() == nullptr && base.list() == nullptr) {
      return costs_.fail("a slice of what is neither a text nor a list");
    }
    const List list = elements(costs_, base);
    const auto size = static_cast<int64_t>(list.size());
    std::array<std::optional<int64_t>, 3> given;
    for (size_t part = 0; part < 3; ++part) {
      if (node.nodes[part + 1] != nullptr) {
        given[part] = value_of(*node.nodes[part + 1]).integer();
      }
    }
    const int64_t step = std::clamp<int64_t>(given[2].value_or(1), -size - 1, size + 1);
    if (step == 0 && size > 0) {
      return costs_.fail("a slice with the step 0");
    }
    const auto place = [&](std::optional<int64_t> at, int64_t otherwise) {
      const int64_t least = step < 0 ? -1 : 0, most = step < 0 ? size - 1 : size;
      if (!at) {
        return otherwise;
      }
      return std::clamp(*at < 0 ? std::max(*at, -size - 1) + size : *at, least, most);
    };
    const int64_t first = place(given[0], step < 0 ? size - 1 : 0);
    const int64_t last = place(given[1], step < 0 ? -1 : size);
    List kept;
    std::string text;
    for (int64_t at = first; size > 0 && (step < 0 ? at > last : at < last); at += step) {
      const Value& one = list[static_cast<size_t>(at)];
      if (base.text() != nullptr) {
        text += *one.text();
      } else {
        kept.push_back(one);
      }
    }
    return base.text() != nullptr ? Value(text) : Value(kept);
  }

  Arguments arguments(const Node& node) {
    Arguments given;
    for (size_t i = 1; i < node.nodes.size(); ++i) {
      given.positional.push_back(stored(*node.nodes[i]));
    }
    for (const auto& [name, one] : node.named) {
      given.named.emplace_back(name, stored(*one));
    }
    return given;
  }

  Value call(const Node& node) {
    const Value callee = value_of(*node.nodes[0]);
    const Function* function = callee.function();
    if (function == nullptr) {
      const auto* undefined = callee.as<Undefined>();
      return costs_.fail(undefined == nullptr ? "a call of what is no function"
                                              : "a call of '" + undefined->name + "', which the session does not know");
    }
    if (function->macro != nullptr) {
      return macro(node, *function);
    }
    const Arguments given = arguments(node);
    if (costs_.failed()) {
      return {};
    }
    if (function->self != nullptr) {
      return method(costs_, *function->self, function->name, given);
    }
    return global(function->name, given);
  }

  Value global(const std::string& name, const Arguments& given) {
    if (name == "raise_exception") {
      refused_ = true;
      const std::string message = given.text(0, "message", "");
      return costs_.fail(message.empty() ? "what it refuses without words" : message);
    }
    if (name == "strftime_now") {
      const std::string format = given.text(0, "format", "");
      return format.size() > kLongestDate ? costs_.fail("a date's format of more than 100 bytes")
                                          : date_text(format, now_);
    }
    if (name == "range") {
      const bool two = given.positional.size() > 1;
      const int64_t first = two ? given.integer(0, "", 0) : 0, end = given.integer(two ? 1 : 0, "", 0);
      const int64_t step = given.integer(2, "", 1);
      List list;
      for (int64_t at = first; step != 0 && (step > 0 ? at < end : at > end); at += step) {
        if (list.size() >= kLongestRange || std::abs(step) > kLongestRange * kLongestRange ||
            std::abs(at) > INT64_MAX / 4) {
          return costs_.fail("a range of more than 100000 numbers");
        }
        list.emplace_back(at);
      }
      costs_.spend(list.size() * sizeof(Value));
      return list;
    }
    Dict dict;
    for (const auto& [key, value] : given.named) {
      dict.set(key, value);
    }
    if (!given.positional.empty() && given.positional[0].dict() != nullptr) {
      given.positional[0].dict()->all_read = true;
      Dict first = *given.positional[0].dict();
      for (const auto& [key, value] : dict.entries) {
        first.set(key, value);
      }
      dict = std::move(first);
    }
    return name == "dict" ? Value(std::move(dict))
                          : Value(Value::Held(std::make_shared<Namespace>(Namespace{std::move(dict)})));
  }

  Value macro(const Node& node, const Function& function) {
    const Node& definition = *function.macro;
    const size_t count = node.nodes.size() - 1;
    if (count > definition.named.size()) {
      return costs_.fail("more arguments than the macro '" + definition.text + "' has");
    }
    std::vector<std::pair<std::string, Value>> values;  // before the scope changes; a namespace may be one
    values.reserve(count + node.named.size());
    for (size_t i = 0; i < count; ++i) {
      values.emplace_back(definition.named[i].first, value_of(*node.nodes[i + 1]));
    }
    for (const auto& [name, one] : node.named) {
      values.emplace_back(name, value_of(*one));
    }
    const Inner inner(this, function.scope);
    for (auto& [name, value] : values) {
      scope_->names[name] = std::move(value);
    }
    for (const auto& [name, otherwise] : definition.named) {
      if (scope_->names.count(name) == 0) {
        scope_->names[name] = otherwise == nullptr ? Value(Value::Held(Undefined{name})) : value_of(*otherwise);
      }
    }
    return captured(definition.body);
  }

  Value comparison(const Node& node) {
    Value first = value_of(*node.nodes[0]);
    for (size_t i = 0; i < node.names.size(); ++i) {
      Value second = value_of(*node.nodes[i + 1]);
      const std::string& name = node.names[i];
      const bool holds = name == "in"       ? contains(costs_, second, first)
                         : name == "not in" ? !contains(costs_, second, first)
                                            : tested(costs_, name, first, {{second}, {}});
      if (!holds) {
        return false;
      }
      first = std::move(second);
    }
    return true;
  }

  Value binary(const std::string& sign, const Value& a, const Value& b) {
    if (costs_.failed()) {
      return {};
    }
    if (sign == "+" && a.text() != nullptr && b.text() != nullptr) {
      return costs_.spend(a.text()->size() + b.text()->size()) ? Value(*a.text() + *b.text()) : Value();
    }
    if (sign == "+" && a.list() != nullptr && b.list() != nullptr) {
      List list = elements(costs_, a);
      const List more = elements(costs_, b);
      list.insert(list.end(), more.begin(), more.end());
      return list;
    }
    if (sign == "*" && (a.text() != nullptr || b.text() != nullptr)) {
      const std::string* text = a.text() != nullptr ? a.text() : b.text();
      const auto times = (a.text() != nullptr ? b : a).integer();
      if (!times || *times > kLongestRange ||
          !costs_.spend(text->size() * static_cast<size_t>(std::max<int64_t>(*times, 0)))) {
        return costs_.fail("a text times what is no small number");
      }
      std::string result;
      for (int64_t i = 0; i < *times; ++i) {
        result += *text;
      }
      return result;
    }
    if (!a.number() || !b.number()) {
      const auto* missing = a.as<Undefined>() != nullptr ? a.as<Undefined>() : b.as<Undefined>();
      return costs_.fail(missing != nullptr
                             ? "'" + missing->name + "', which is undefined, beside '" + sign + "'"
                             : "values that '" + sign + "' cannot join: " + represented(costs_, a).substr(0, 40) +
                                   " and " + represented(costs_, b).substr(0, 40));
    }
    return a.integer() && b.integer() && sign != "/" ? whole(sign, *a.integer(), *b.integer())
                                                     : fractional(sign, *a.number(), *b.number());
  }

  Value whole(const std::string& sign, int64_t a, int64_t b) {
    int64_t result = 0;
    if ((sign == "//" || sign == "%") && (b == 0 || b == -1)) {
      return b == 0 ? costs_.fail("a division by zero") : sign == "%" ? Value(int64_t{0}) : whole("-", 0, a);
    }
    if (sign == "//" || sign == "%") {
      const int64_t rest = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);  // with the sign of b, as Python has it
      return sign == "%" ? rest : (a - rest) / b;
    }
    if (sign == "**") {
      if (b < 0) {
        return std::pow(static_cast<double>(a), static_cast<double>(b));
      }
      result = 1;
      for (int64_t i = 0; i < b && result != 0 && (a != 1); ++i) {
        if (__builtin_mul_overflow(result, a, &result) || i > 64) {
          return a == -1 ? Value(int64_t{b % 2 == 0 ? 1 : -1}) : costs_.fail("a number beyond 64 bits");
        }
      }
      return result;
    }
    const bool overflow = sign == "+"   ? __builtin_add_overflow(a, b, &result)
                          : sign == "-" ? __builtin_sub_overflow(a, b, &result)
                                        : __builtin_mul_overflow(a, b, &result);
    return overflow ? costs_.fail("a number beyond 64 bits") : Value(result);
  }

  Value fractional(const std::string& sign, double a, double b) {
    if ((sign == "/" || sign == "//" || sign == "%") && b == 0) {
      return costs_.fail("a division by zero");
    }
    return sign == "+"    ? a + b
           : sign == "-"  ? a - b
           : sign == "*"  ? a * b
           : sign == "/"  ? a / b
           : sign == "//" ? std::floor(a / b)
           : sign == "%"  ? a - b * std::floor(a / b)
                          : std::pow(a, b);
  }

  std::time_t now_;
  Costs costs_;
  bool refused_ = false;
  Rendered rendered_;
  std::list<Scope> scopes_;
  std::set<const Scope*> kept_;  // those in which macros were defined, and around them
  Scope* scope_ = nullptr;
  const Dict* variables_ = nullptr;
  int level_ = 0;
  int captures_ = 0;
  int64_t loops_ = 0;
};

}  // namespace

Result<Template> Template::parse(const std::string& source) {
  ZO_ASSIGN(body, jinja::parse(source));
  return Template(std::move(body));
}

Result<Rendered> Template::render(const Dict& variables, std::time_t now) const {
  return Run(now).render(body_, variables);
}

}  // namespace zoexport::jinja
