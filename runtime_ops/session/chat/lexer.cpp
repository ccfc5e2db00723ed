#include "session/chat/lexer.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "session/chat/texts.h"
#include "session/text/utf8.h"

namespace zoexport::jinja {
namespace {

const char* const kBlanks = " \t\n\r\f\v";

// Text and tags to tokens. The rules for blanks are those of Jinja's lexer.
class Lexer {
 public:
  explicit Lexer(const std::string& source) {
    for (size_t at = 0; at < source.size(); ++at) {  // every line break is one character
      if (source[at] == '\r') {
        source_ += '\n';
        at += source.compare(at + 1, 1, "\n") == 0 ? 1 : 0;
      } else {
        source_ += source[at];
      }
    }
    if (!source_.empty() && source_.back() == '\n') {
      source_.pop_back();
    }
  }

  Result<std::vector<Token>> tokens() {
    while (at_ < source_.size()) {
      const size_t tag = next_tag();
      std::string text = source_.substr(at_, tag - at_);
      const char kind = tag < source_.size() ? source_[tag + 1] : ' ';
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      if (tag < source_.size()) {
        cut_before(text, kind, sign);
      }
      add(Type::kText, text);
      count_lines(at_, tag);
      if (tag == source_.size()) {
        at_ = tag;
        break;
      }
      at_ = tag + 2 + ((sign == '-' || sign == '+') ? 1 : 0);
      ZO_TRY(kind == '#' ? comment() : tag_of(kind));
    }
    add(Type::kFinish, "end");
    return std::move(tokens_);
  }

 private:
  size_t next_tag() const {
    for (size_t at = at_; at + 1 < source_.size(); ++at) {
      if (source_[at] == '{' && std::strchr("{%#", source_[at + 1]) != nullptr && source_[at + 1] != '\0') {
        return at;
      }
    }
    return source_.size();
  }

  void cut_before(std::string& text, char kind, char sign) const {
    if (sign == '-') {
      text = cut(text, std::nullopt, false, true);
    } else if (sign != '+' && kind != '{') {
      const size_t line = text.rfind('\n') + 1;
      if ((line > 0 || at_line_start_) && text.find_first_not_of(kBlanks, line) == std::string::npos) {
        text.resize(line);
      }
    }
  }

  void add(Type type, const std::string& text) {
    if (type != Type::kText || !text.empty()) {
      tokens_.push_back({type, text, line_});
    }
  }

  void count_lines(size_t from, size_t to) {
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<ptrdiff_t>(from), source_.begin() + static_cast<ptrdiff_t>(to), '\n'));
  }

  // Behind the end of a tag at `at_`: `sign` is what stands before its last two characters.
  void close(char sign, char kind) {
    const size_t begin = at_;
    if (sign == '-') {
      for (size_t next = at_; at_ < source_.size() && blank(next_character(source_, next)); at_ = next) {
      }
    } else if (sign != '+' && kind != '{' && source_.compare(at_, 1, "\n") == 0) {
      ++at_;
    }
    count_lines(begin, at_);
    at_line_start_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  Status comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) {
      return broken(line_, "a comment without an end", "'#}'");
    }
    count_lines(at_, end);
    const char sign = end > at_ ? source_[end - 1] : ' ';
    at_ = end + 2;
    close(sign, '#');
    return {};
  }

  Status tag_of(char kind) {
    if (kind == '%' && raw_follows()) {
      return raw();
    }
    add(kind == '%' ? Type::kBlock : Type::kPrint, "");
    const std::string end = kind == '%' ? "%}" : "}}";
    std::string open;  // brackets that are not closed
    while (at_ < source_.size()) {
      const char here = source_[at_];
      if (std::strchr(kBlanks, here) != nullptr && here != '\0') {
        line_ += here == '\n' ? 1 : 0;
        ++at_;
        continue;
      }
      const bool sign = here == '-' || (here == '+' && kind == '%');
      if (open.empty() && source_.compare(at_ + (sign ? 1 : 0), 2, end) == 0) {
        at_ += sign ? 3 : 2;
        add(Type::kClose, end);
        close(sign ? here : ' ', kind);
        return {};
      }
      ZO_TRY(token(open));
    }
    return broken(line_, "a tag without an end", "'" + end + "'");
  }

  Status token(std::string& open) {
    const char here = source_[at_];
    const auto letter = [](char one) { return (one | 32) >= 'a' && (one | 32) <= 'z'; };
    const auto digit = [](char one) { return one >= '0' && one <= '9'; };
    size_t end = at_;
    if (letter(here) || here == '_') {
      while (end < source_.size() && (letter(source_[end]) || digit(source_[end]) || source_[end] == '_')) {
        ++end;
      }
      add(Type::kName, source_.substr(at_, end - at_));
    } else if (digit(here)) {
      const auto digits = [&] {
        while (end < source_.size() && (digit(source_[end]) || source_[end] == '_')) {
          ++end;
        }
      };
      digits();
      const bool fraction = end + 1 < source_.size() && source_[end] == '.' && digit(source_[end + 1]);
      if (fraction) {
        ++end;
        digits();
      }
      std::string number = source_.substr(at_, end - at_);
      number.erase(std::remove(number.begin(), number.end(), '_'), number.end());
      add(fraction ? Type::kFloat : Type::kInteger, number);
    } else if (here == '\'' || here == '"') {
      return string();
    } else {
      static constexpr std::array kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[",
                                                "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","};
      const auto* found = std::find_if(kOperators.begin(), kOperators.end(), [&](const char* one) {
        return source_.compare(at_, std::strlen(one), one) == 0;
      });
      if (found == kOperators.end()) {
        return broken(line_, "the character '" + source_.substr(at_, character_bytes(here)) + "'", "an expression");
      }
      end = at_ + std::strlen(*found);
      if (std::strchr("([{", here) != nullptr) {
        open += here;
      } else if (std::strchr(")]}", here) != nullptr && !open.empty()) {
        open.pop_back();
      }
      add(Type::kOperator, *found);
    }
    at_ = end;
    return {};
  }

  Status string() {
    const char mark = source_[at_];
    std::string text;
    for (++at_; at_ < source_.size() && source_[at_] != mark; ++at_) {
      line_ += source_[at_] == '\n' ? 1 : 0;
      if (source_[at_] != '\\' || at_ + 1 == source_.size()) {
        text += source_[at_];
        continue;
      }
      const char code = source_[++at_];
      static constexpr char kCodes[] = "ntrabfv\\'\"";
      static constexpr char kMeant[] = "\n\t\r\a\b\f\v\\'\"";
      const size_t digits = code == 'x' ? 2 : code == 'u' ? 4 : code == 'U' ? 8 : 0;
      if (const char* const place = std::strchr(kCodes, code); place != nullptr && code != '\0') {
        text += kMeant[place - kCodes];
      } else if (digits > 0) {
        const std::string hex = source_.substr(at_ + 1, digits);
        const unsigned long character = std::strtoul(hex.c_str(), nullptr, 16);
        if (hex.size() < digits || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos ||
            character > 0x10FFFF || (character >= 0xD800 && character < 0xE000)) {
          return broken(line_, "a wrong escape in a text", "the number of a character");
        }
        append_character(text, static_cast<char32_t>(character));
        at_ += digits;
      } else if (code == '\n') {
        line_ += 1;
      } else {
        text += {'\\', code};
      }
    }
    if (at_ == source_.size()) {
      return broken(line_, "a text without an end", std::string(1, mark));
    }
    ++at_;
    add(Type::kString, text);
    return {};
  }

  // The tag's name from `at`, and behind it.
  bool named(size_t& at, const char* name) const {
    at = source_.find_first_not_of(kBlanks, at);
    if (at == std::string::npos || source_.compare(at, std::strlen(name), name) != 0) {
      return false;
    }
    at = source_.find_first_not_of(kBlanks, at + std::strlen(name));
    if (at == std::string::npos) {
      return false;
    }
    const bool sign = source_[at] == '-' || source_[at] == '+';
    return source_.compare(at + (sign ? 1 : 0), 2, "%}") == 0;
  }

  bool raw_follows() const {
    size_t at = at_;
    return named(at, "raw");
  }

  Status raw() {
    size_t begin = at_;
    named(begin, "raw");
    const bool sign = source_[begin] != '%';
    at_ = begin + (sign ? 3 : 2);
    close(sign ? source_[begin] : ' ', '%');
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
      const char before = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      size_t end = tag + 2 + ((before == '-' || before == '+') ? 1 : 0);
      if (named(end, "endraw")) {
        std::string text = source_.substr(at_, tag - at_);
        cut_before(text, '%', before);
        add(Type::kText, text);
        count_lines(at_, end);
        const bool signed_end = source_[end] != '%';
        at_ = end + (signed_end ? 3 : 2);
        close(signed_end ? source_[end] : ' ', '%');
        return {};
      }
    }
    return broken(line_, "raw without an end", "endraw");
  }

  std::string source_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
};

}  // namespace

Failure broken(int line, const std::string& found, const std::string& expected) {
  return {ZO_BUNDLE_ERROR, "chat template, line " + std::to_string(line), found, expected,
          "Compile the model with a chat template that transformers can run."};
}

Result<std::vector<Token>> tokens_of(const std::string& source) { return Lexer(source).tokens(); }

}  // namespace zoexport::jinja
