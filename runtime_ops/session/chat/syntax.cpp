#include "session/chat/syntax.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

#include "session/chat/functions.h"
#include "session/chat/lexer.h"
#include "session/text/utf8.h"

namespace zoexport::jinja {
namespace {

constexpr int kMostNested = 400;  // expressions and blocks inside one another, and operands in a row
constexpr size_t kLongest = size_t{1} << 20;

// Jinja's grammar by recursive descent. The first thing that is wrong ends it: then `here()` is the end of the template.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<Nodes> parse() {
    Nodes body = statements({});
    if (!failure_ && here().type != Type::kFinish) {
      fail("an end of a block that was not begun");
    }
    if (failure_) {
      return *failure_;
    }
    return body;
  }

 private:
  using Made = std::unique_ptr<Node>;

  const Token& here() const { return failure_ ? tokens_.back() : tokens_[at_]; }
  bool is(Type type, const char* text) const { return here().type == type && here().text == text; }
  bool is(const char* text) const { return is(Type::kOperator, text); }
  bool word(const char* text) const { return is(Type::kName, text); }

  Token next() {
    const Token token = here();
    at_ += at_ + 1 < tokens_.size() ? 1 : 0;
    return token;
  }
  bool skip(const char* text) {
    const bool found = is(text) || word(text);
    if (found) {
      next();
    }
    return found;
  }

  void fail(const std::string& expected) {
    if (!failure_) {
      const Token& token = tokens_[at_];
      failure_ = broken(token.line, token.type == Type::kFinish ? "its end" : "'" + token.text + "'", expected);
    }
  }
  void expect(const char* text) {
    if (!skip(text)) {
      fail(std::string("'") + text + "'");
    }
  }
  void close() {
    if (here().type != Type::kClose) {
      fail("the end of the tag");
    }
    next();
  }
  std::string name() {
    if (here().type != Type::kName) {
      fail("a name");
    }
    return next().text;
  }

  template <typename... Operands>
  static Made made(Kind kind, const std::string& text, Operands... operands) {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->text = text;
    (node->nodes.push_back(std::move(operands)), ...);
    return node;
  }
  static Made constant(Value value) {
    auto node = made(Kind::kConstant, "");
    node->value = std::move(value);
    return node;
  }

  // Counts how deep the tree becomes: each operator adds one, and each operand behind it.
  class Level {
   public:
    explicit Level(Parser* parser) : parser_(parser) { deeper(); }
    ~Level() { parser_->level_ -= count_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

    void deeper() {
      ++count_;
      if (++parser_->level_ > kMostNested) {
        parser_->fail("fewer expressions inside one another");
      }
    }

   private:
    Parser* parser_;
    int count_ = 0;
  };

  // Up to a block of one of these names, which is left to be read.
  Nodes statements(const std::vector<std::string>& ends) {
    const Level level(this);
    Nodes body;
    while (here().type != Type::kFinish) {
      const Token token = next();
      if (token.type == Type::kText) {
        body.push_back(made(Kind::kText, token.text));
      } else if (token.type == Type::kPrint) {
        body.push_back(made(Kind::kPrint, "", tuple()));
        close();
      } else if (std::find(ends.begin(), ends.end(), here().text) != ends.end()) {
        return body;
      } else {
        body.push_back(statement());
      }
    }
    if (!ends.empty()) {
      fail("'" + ends.back() + "'");
    }
    return body;
  }

  Nodes block(const char* end) {
    close();
    Nodes body = statements({end});
    next();
    return body;
  }

  Made statement() {
    const std::string kind = here().text;
    if (skip("if")) {
      return if_else();
    }
    if (skip("for")) {
      return loop();
    }
    if (skip("set")) {
      return set();
    }
    if (skip("macro")) {
      return macro();
    }
    Made node;
    if (skip("generation")) {
      node = made(Kind::kGeneration, "");
      node->body = block("endgeneration");
    } else if (skip("filter")) {
      node = made(Kind::kFilterBlock, "", filters(nullptr));
      node->body = block("endfilter");
    } else if (skip("break") || skip("continue")) {
      if (loops_ == 0) {
        fail("a loop around it");
      }
      node = made(kind == "break" ? Kind::kBreak : Kind::kContinue, "");
    } else {
      fail("a block of if, for, set, macro, filter, generation, break or continue");
    }
    close();
    return node;
  }

  Made if_else() {
    Made node = made(Kind::kIf, "", either());
    close();
    node->body = statements({"elif", "else", "endif"});
    if (skip("elif")) {
      const Level level(this);
      node->otherwise.push_back(if_else());
      return node;
    }
    if (skip("else")) {
      close();
      node->otherwise = statements({"endif"});
    }
    expect("endif");
    close();
    return node;
  }

  std::vector<std::string> targets() {
    const bool bracket = skip("(");
    std::vector<std::string> names = {name()};
    while (skip(",")) {
      names.push_back(name());
    }
    if (bracket) {
      expect(")");
    }
    return names;
  }

  Made loop() {
    Made node = made(Kind::kFor, "");
    node->names = targets();
    expect("in");
    node->nodes.push_back(tuple(/*choice=*/false));
    node->nodes.push_back(skip("if") ? expression() : nullptr);
    close();
    ++loops_;
    node->body = statements({"else", "endfor"});
    --loops_;
    if (skip("else")) {
      close();
      node->otherwise = statements({"endfor"});
    }
    expect("endfor");
    close();
    return node;
  }

  Made set() {
    Made node = made(Kind::kSet, "");
    node->names = targets();
    if (node->names.size() == 1 && skip(".")) {
      node->text = name();
    }
    if (skip("=")) {
      node->nodes.push_back(tuple());
      close();
      return node;
    }
    node->kind = Kind::kSetBlock;
    node->nodes.push_back(is("|") ? filters(nullptr) : nullptr);
    node->body = block("endset");
    close();
    return node;
  }

  Made macro() {
    Made node = made(Kind::kMacro, name());
    expect("(");
    while (!failure_ && !is(")")) {
      std::string parameter = name();
      node->named.emplace_back(std::move(parameter), skip("=") ? expression() : nullptr);
      if (!is(")")) {
        expect(",");
      }
    }
    expect(")");
    const int loops = std::exchange(loops_, 0);
    node->body = block("endmacro");
    loops_ = loops;
    close();
    return node;
  }

  // Expressions with a comma between them are a list.
  Made tuple(bool choice = true) {
    const auto one = [&] { return choice ? expression() : either(); };
    Made first = one();
    if (!is(",")) {
      return first;
    }
    Made list = made(Kind::kList, "", std::move(first));
    while (skip(",")) {
      if (here().type == Type::kClose) {
        break;
      }
      list->nodes.push_back(one());
    }
    return list;
  }

  Made expression() {
    Level level(this);
    Made node = either();
    while (skip("if")) {
      level.deeper();
      Made condition = either();
      Made other = skip("else") ? expression() : nullptr;
      node = made(Kind::kChoice, "", std::move(condition), std::move(node), std::move(other));
    }
    return node;
  }

  Made either() {
    Level level(this);
    Made node = both();
    while (skip("or")) {
      level.deeper();
      node = made(Kind::kOr, "", std::move(node), both());
    }
    return node;
  }

  Made both() {
    Level level(this);
    Made node = negated();
    while (skip("and")) {
      level.deeper();
      node = made(Kind::kAnd, "", std::move(node), negated());
    }
    return node;
  }

  Made negated() {
    if (skip("not")) {
      const Level level(this);
      return made(Kind::kNot, "", negated());
    }
    return comparison();
  }

  Made comparison() {
    Made first = sum();
    Made node;
    while (!failure_) {
      std::string text;
      static constexpr std::array kCompared = {"==", "!=", "<", "<=", ">", ">="};
      const bool compared = here().type == Type::kOperator &&
                            std::find_if(kCompared.begin(), kCompared.end(),
                                         [&](const char* one) { return here().text == one; }) != kCompared.end();
      if (compared || word("in")) {
        text = next().text;
      } else if (word("not") && tokens_[std::min(at_ + 1, tokens_.size() - 1)].text == "in") {
        next();
        next();
        text = "not in";
      } else {
        break;
      }
      if (node == nullptr) {
        node = made(Kind::kCompare, "", std::move(first));
      }
      node->names.push_back(text);
      node->nodes.push_back(sum());
    }
    return node == nullptr ? std::move(first) : std::move(node);
  }

  template <typename Operand>
  Made binary(std::initializer_list<const char*> operators, Operand operand) {
    Level level(this);
    Made node = operand();
    while (!failure_) {
      level.deeper();
      const auto* const found =
          std::find_if(operators.begin(), operators.end(), [&](const char* one) { return is(one); });
      if (found == operators.end()) {
        break;
      }
      next();
      node = made(Kind::kBinary, *found, std::move(node), operand());
    }
    return node;
  }
  Made sum() {
    return binary({"+", "-"}, [this] { return concatenation(); });
  }
  Made product() {
    return binary({"*", "/", "//", "%"}, [this] { return binary({"**"}, [this] { return signed_value(); }); });
  }

  Made concatenation() {
    Made first = product();
    if (!is("~")) {
      return first;
    }
    Made node = made(Kind::kConcatenation, "", std::move(first));
    while (skip("~")) {
      node->nodes.push_back(product());
    }
    return node;
  }

  Made signed_value(bool filtered = true) {
    const Level level(this);
    Made node;
    if (is("-") || is("+")) {
      const std::string sign = next().text;
      node = made(Kind::kSign, sign, signed_value(false));
    } else {
      node = primary();
    }
    node = postfix(std::move(node));
    return filtered ? filters(std::move(node)) : std::move(node);
  }

  Made primary() {
    const Token token = next();
    switch (token.type) {
      case Type::kName:
        if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
          return constant((token.text[0] | 32) == 't');
        }
        return token.text == "none" || token.text == "None" ? constant(Value::Held(None{}))
                                                            : made(Kind::kName, token.text);
      case Type::kString: {
        std::string text = token.text;
        while (here().type == Type::kString) {
          text += next().text;
        }
        return constant(text);
      }
      case Type::kInteger: {
        errno = 0;
        const int64_t value = std::strtoll(token.text.c_str(), nullptr, 10);
        if (errno != 0) {
          fail("a smaller number");
        }
        return constant(value);
      }
      case Type::kFloat:
        return constant(std::strtod(token.text.c_str(), nullptr));
      default:
        break;
    }
    if (token.text == "(") {
      return bracketed();
    }
    if (token.text == "[") {
      Made node = made(Kind::kList, "");
      items("]", [&] { node->nodes.push_back(expression()); });
      return node;
    }
    if (token.text == "{") {
      Made node = made(Kind::kDict, "");
      items("}", [&] {
        node->nodes.push_back(expression());
        expect(":");
        node->nodes.push_back(expression());
      });
      return node;
    }
    at_ -= at_ > 0 && token.type != Type::kFinish ? 1 : 0;
    fail("an expression");
    return constant(Value());
  }

  // Read the comma-separated items up to the closing bracket; the parser is at the first item.
  template <typename Item>
  void items(const char* end, Item item) {
    while (!failure_ && !is(end)) {
      item();
      if (!is(end)) {
        expect(",");
      }
    }
    expect(end);
  }

  Made bracketed() {
    if (skip(")")) {
      return made(Kind::kList, "");
    }
    Made first = expression();
    if (skip(")")) {
      return first;
    }
    Made node = made(Kind::kList, "", std::move(first));
    expect(",");
    items(")", [&] { node->nodes.push_back(expression()); });
    return node;
  }

  Made postfix(Made node) {
    Level level(this);
    while (!failure_) {
      level.deeper();
      if (skip(".")) {
        node = here().type == Type::kInteger ? made(Kind::kItem, "", std::move(node), primary())
                                             : made(Kind::kAttribute, name(), std::move(node));
      } else if (skip("[")) {
        node = subscript(std::move(node));
      } else if (is("(")) {
        node = made(Kind::kCall, "", std::move(node));
        arguments(*node);
      } else {
        break;
      }
    }
    return node;
  }

  Made subscript(Made base) {
    Made parts[3];
    bool slice = false;
    for (size_t part = 0; part < 3 && !failure_ && !is("]"); ++part) {
      if (!is(":")) {
        parts[part] = expression();
      }
      if (!is(":")) {
        break;
      }
      next();
      slice = true;
    }
    expect("]");
    if (slice) {
      return made(Kind::kSlice, "", std::move(base), std::move(parts[0]), std::move(parts[1]), std::move(parts[2]));
    }
    if (parts[0] == nullptr) {
      fail("a key");
    }
    return made(Kind::kItem, "", std::move(base), std::move(parts[0]));
  }

  void arguments(Node& node) {
    expect("(");
    items(")", [&] {
      const bool named = here().type == Type::kName && tokens_[std::min(at_ + 1, tokens_.size() - 1)].text == "=" &&
                         tokens_[std::min(at_ + 1, tokens_.size() - 1)].type == Type::kOperator;
      if (named) {
        std::string key = name();
        next();
        node.named.emplace_back(std::move(key), expression());
      } else {
        node.nodes.push_back(expression());
      }
    });
  }

  // Read the filters and tests after a value. Without a value, read a block's filters; the first needs no bar.
  Made filters(Made node) {
    Level level(this);
    bool first = node == nullptr;
    while (!failure_) {
      level.deeper();
      if (skip("|") || (first && here().type == Type::kName)) {
        node = made(Kind::kFilter, name(), std::move(node));
        if (!failure_ && !known_filter(node->text)) {
          --at_;
          fail("a filter of Jinja that the session knows");
        }
        if (is("(")) {
          arguments(*node);
        }
      } else if (node != nullptr && skip("is")) {
        node = test(std::move(node));
      } else if (node != nullptr && is("(")) {
        node = postfix(std::move(node));
      } else {
        break;
      }
      first = false;
    }
    return node;
  }

  Made test(Made value) {
    const bool negative = skip("not");
    Made node = made(Kind::kTest, name(), std::move(value));
    if (!failure_ && !known_test(node->text)) {
      --at_;
      fail("a test of Jinja that the session knows");
    }
    const auto argument = [&] {
      const Type type = here().type;
      return type == Type::kString || type == Type::kInteger || type == Type::kFloat || is("[") || is("{") ||
             (type == Type::kName && !word("else") && !word("or") && !word("and") && !word("is") && !word("if") &&
              !word("in") && !word("not"));
    };
    if (is("(")) {
      arguments(*node);
    } else if (argument()) {
      node->nodes.push_back(postfix(primary()));
    }
    return negative ? made(Kind::kNot, "", std::move(node)) : std::move(node);
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int level_ = 0;
  int loops_ = 0;
  std::optional<Failure> failure_;
};

}  // namespace

Result<Nodes> parse(const std::string& source) {
  if (source.size() > kLongest || valid_utf8(source) != source.size()) {
    return broken(1, source.size() > kLongest ? "more than 1 MiB" : "bytes that are no UTF-8",
                  "a shorter text in UTF-8");
  }
  ZO_ASSIGN(tokens, tokens_of(source));
  return Parser(std::move(tokens)).parse();
}

}  // namespace zoexport::jinja
