#include "session/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "session/text/utf8.h"

namespace zoexport {
namespace {

constexpr size_t kLongestPattern = 1 << 16;
constexpr uint32_t kMostMemory = 64 << 10;    // of one match, in KiB
constexpr uint32_t kMostNestedGroups = 64;    // as PCRE2 compiles them recursively
constexpr uint32_t kMostRepeated = 1000;      // in {n,m}
constexpr size_t kLongestCompiled = 1 << 20;  // of a pattern, in bytes

// Properties that both libraries take in the same words.
constexpr std::array kProperties = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me",        "N", "Nd",
                                    "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",        "S", "Sm",
                                    "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Alphabetic"};
// Scripts. PCRE2 has extensions of scripts by these words alone, Oniguruma the scripts.
constexpr std::array kScripts = {"Arabic",   "Armenian", "Bengali", "Bopomofo", "Cyrillic",  "Devanagari",
                                 "Georgian", "Greek",    "Han",     "Hangul",   "Hebrew",    "Hiragana",
                                 "Katakana", "Khmer",    "Lao",     "Latin",    "Mongolian", "Myanmar",
                                 "Tamil",    "Telugu",   "Thai",    "Tibetan"};

template <typename Names>
bool among(const Names& names, const std::string& name) {
  return std::any_of(names.begin(), names.end(), [&](const char* one) { return name == one; });
}

bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }
bool is_letter(char byte) { return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z'); }

// Goes through an expression once, and writes it again.
class Translator {
 public:
  explicit Translator(const std::string& pattern) : pattern_(pattern) {}

  bool run() {
    while (at_ < pattern_.size() && problem_.empty()) {
      step();
    }
    return problem_.empty();
  }
  const std::string& result() const { return result_; }
  const std::string& problem() const { return problem_; }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool begins(const char* text) const { return pattern_.compare(at_, std::strlen(text), text) == 0; }
  void refuse(std::string what) { problem_ = std::move(what); }
  void copy(size_t bytes) {
    result_.append(pattern_, at_, bytes);
    at_ += bytes;
  }

  void step() {
    const char byte = peek();
    if (byte == '\\') {
      escape(false);
      repeated();
    } else if (byte == '[') {
      bracket();
      repeated();
    } else if (byte == '(') {
      group();
    } else if (byte == ')' || byte == '.') {
      copy(1);
      repeated();
    } else if (byte == '|' || byte == '^' || byte == '$') {
      copy(1);
    } else if (byte == '{' || byte == '}' || byte == ']' || byte == '*' || byte == '+' || byte == '?') {
      refuse(std::string("a '") + byte + "' that neither repeats something nor is escaped");
    } else {
      copy(character_bytes(byte));
      repeated();
    }
  }

  // Read the quantifiers after an expression that can be repeated.
  void repeated() {
    const char byte = peek();
    if (byte == '*' || byte == '+' || byte == '?') {
      copy(1);
      if (peek() == '+' || peek() == '?') {
        copy(1);
      }
    } else if (byte == '{') {
      counted();
    } else {
      return;
    }
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{') {
      // Oniguruma repeats the repetition, where PCRE2 has another meaning or none.
      refuse("a repetition that is repeated");
    }
  }

  void counted() {
    size_t end = at_ + 1;
    std::vector<std::string> counts(1);
    while (end < pattern_.size() && (is_digit(pattern_[end]) || pattern_[end] == ',')) {
      if (pattern_[end] == ',') {
        counts.emplace_back();
      } else {
        counts.back() += pattern_[end];
      }
      ++end;
    }
    const bool whole = end < pattern_.size() && pattern_[end] == '}' && counts.size() <= 2 && !counts[0].empty();
    const bool small = std::all_of(counts.begin(), counts.end(), [](const std::string& count) {
      return count.size() <= 4 && (count.empty() || std::stoul(count) <= kMostRepeated);
    });
    if (!whole || !small) {
      refuse("a '{' that is not a repetition of at most " + std::to_string(kMostRepeated));
      return;
    }
    copy(end + 1 - at_);
  }

  void group() {
    static constexpr std::array kKinds = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    const auto* kind = std::find_if(kKinds.begin(), kKinds.end(), [&](const char* one) { return begins(one); });
    if (kind != kKinds.end()) {
      copy(std::strlen(*kind));
    } else if (peek(1) != '?' && peek(1) != '*') {
      copy(1);
    } else {
      refuse("a group that begins with '" + pattern_.substr(at_, 3) + "'");
    }
  }

  void escape(bool in_class) {
    const char byte = peek(1);
    const auto write = [&](const std::string& text) {
      result_ += text;
      at_ += 2;
    };
    switch (byte) {
      case 'r':
      case 'n':
      case 't':
      case 'f':
        copy(2);
        return;
      case 'v':
        write("\\x{b}");
        return;
      case 's':
        write("\\p{White_Space}");
        return;
      case 'S':
        write("\\P{White_Space}");
        return;
      case 'd':
        write("\\p{Nd}");
        return;
      case 'D':
        write("\\P{Nd}");
        return;
      case 'w':
        write(in_class ? "\\p{L}\\p{M}\\p{Nd}\\p{Pc}" : "[\\p{L}\\p{M}\\p{Nd}\\p{Pc}]");
        return;
      case 'p':
      case 'P':
        property();
        return;
      case 'u':
        code(2, 4, 4);
        return;
      case 'x':
        if (peek(2) == '{') {
          code(3, 1, 8);
          if (problem_.empty() && peek() == '}') {
            ++at_;
          } else if (problem_.empty()) {
            refuse("a '\\x{' without a '}'");
          }
        } else {
          code(2, 2, 2);
        }
        return;
      default:
        if (byte == '\0' || is_digit(byte) || is_letter(byte)) {
          refuse(byte == '\0' ? "a '\\' at its end" : std::string("'\\") + byte + "'");
        } else {
          // Any other character stands for itself; PCRE2 takes a backslash before ASCII alone.
          if (static_cast<unsigned char>(byte) < 0x80) {
            copy(2);
          } else {
            ++at_;
            copy(character_bytes(byte));
          }
        }
    }
  }

  // A character by its number: `least` to `most` hexadecimal digits that begin `ahead`.
  void code(size_t ahead, size_t least, size_t most) {
    std::string digits;
    while (digits.size() < most && std::isxdigit(static_cast<unsigned char>(peek(ahead + digits.size()))) != 0) {
      digits += peek(ahead + digits.size());
    }
    const uint64_t number = digits.size() < least ? UINT64_MAX : std::stoull(digits, nullptr, 16);
    // Two digits are a byte for Oniguruma.
    if (number > 0x10FFFF || (number >= 0xD800 && number < 0xE000) || (ahead == 2 && most == 2 && number > 0x7F)) {
      refuse("a number that is no character's: '" + pattern_.substr(at_, ahead + digits.size()) + "'");
      return;
    }
    result_ += "\\x{" + digits + "}";
    at_ += ahead + digits.size();
  }

  void property() {
    const size_t end = pattern_.find('}', at_);
    if (peek(2) != '{' || end == std::string::npos) {
      refuse("a property without a name in braces");
      return;
    }
    std::string name = pattern_.substr(at_ + 3, end - at_ - 3);
    bool negative = peek(1) == 'P';
    if (!name.empty() && name.front() == '^') {
      negative = !negative;
      name.erase(0, 1);
    }
    if (!among(kProperties, name) && !among(kScripts, name)) {
      refuse("the property '" + name + "'");
      return;
    }
    result_ += std::string(negative ? "\\P{" : "\\p{") + (among(kScripts, name) ? "sc:" : "") + name + "}";
    at_ = end + 1;
  }

  void bracket() {
    copy(1);
    if (peek() == '^') {
      copy(1);
    }
    if (peek() == ']') {
      refuse("a class that begins with ']'");
      return;
    }
    while (problem_.empty() && peek() != ']') {
      if (at_ >= pattern_.size()) {
        refuse("a class without an end");
      } else if (peek() == '\\') {
        escape(true);
      } else if (peek() == '[') {
        refuse("a '[' in a class");
      } else if (begins("&&")) {
        refuse("an intersection of classes");
      } else {
        copy(character_bytes(peek()));
      }
    }
    if (problem_.empty()) {
      copy(1);
    }
  }

  const std::string& pattern_;
  size_t at_ = 0;
  std::string result_;
  std::string problem_;
};

Failure refused(const std::string& where, std::string found) {
  return {ZO_BUNDLE_ERROR, where, std::move(found), "a regular expression that this version reads",
          "Use a tokenizer of another kind, or tokenize in Python."};
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  pcre2_match_context* limits = nullptr;
  pcre2_match_data* matched = nullptr;  // of the call that runs: one thread uses a tokenizer at a time
};

void Regex::Free::operator()(Code* code) const {
  pcre2_match_data_free(code->matched);
  pcre2_match_context_free(code->limits);
  pcre2_code_free(code->code);
  delete code;
}

Result<std::string> translated_regex(const std::string& pattern, const std::string& where) {
  if (pattern.size() > kLongestPattern) {
    return refused(where, "a regular expression of " + std::to_string(pattern.size()) + " bytes");
  }
  Translator translator(pattern);
  if (!translator.run()) {
    return refused(where, "a regular expression with " + translator.problem());
  }
  return translator.result();
}

Result<Regex> Regex::compile(const std::string& pattern, const std::string& where, uint32_t most_steps) {
  ZO_ASSIGN(translated, translated_regex(pattern, where));
  return compile_translated(translated, where, most_steps);
}

Result<Regex> Regex::clusters(const std::string& where) { return compile_translated("\\X", where, kMostSteps); }

Result<Regex> Regex::compile_translated(const std::string& pattern, const std::string& where, uint32_t most_steps) {
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  if (context != nullptr) {
    pcre2_set_parens_nest_limit(context, kMostNestedGroups);
    pcre2_set_max_pattern_compiled_length(context, kLongestCompiled);
  }
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  int number = 0;
  PCRE2_SIZE place = 0;
  std::unique_ptr<Code, Free> code(new Code);
  code->code = context == nullptr ? nullptr
                                  : pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options,
                                                  &number, &place, context);
  pcre2_compile_context_free(context);
  if (code->code == nullptr) {
    PCRE2_UCHAR text[256] = "no memory left";
    pcre2_get_error_message(number, text, sizeof(text));
    return refused(where, "a regular expression that is none (" + std::string(reinterpret_cast<char*>(text)) + ")");
  }
  code->limits = pcre2_match_context_create(nullptr);
  code->matched = pcre2_match_data_create(1, nullptr);
  if (code->limits == nullptr || code->matched == nullptr) {
    return refused(where, "no memory left");
  }
  pcre2_set_match_limit(code->limits, most_steps);
  pcre2_set_depth_limit(code->limits, most_steps);
  pcre2_set_heap_limit(code->limits, kMostMemory);
  return Regex(std::move(code), where);
}

Result<std::vector<Span>> Regex::find(std::string_view text) const {
  std::vector<Span> matches;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(code_->matched);
  size_t at = 0;
  while (at <= text.size()) {
    const int count =
        pcre2_match(code_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, code_->matched, code_->limits);
    if (count == PCRE2_ERROR_NOMATCH) {
      break;
    }
    if (count < 0) {
      PCRE2_UCHAR message[256] = "";
      pcre2_get_error_message(count, message, sizeof(message));
      return Failure{
          ZO_DATA_ERROR, where_,
          "a text on which its regular expression ends with: " + std::string(reinterpret_cast<char*>(message)),
          "at most " + std::to_string(kMostSteps) + " steps and " + std::to_string(kMostMemory) + " KiB a match",
          "Give a shorter text, or one with more line breaks."};
    }
    const Span match{ends[0], ends[1]};
    if (match.begin < at || match.end < match.begin) {  // a look behind that moved the match's begin
      break;
    }
    // An empty match right behind another one counts for nothing, as in Rust.
    const bool again = match.begin == match.end && !matches.empty() && matches.back().end == match.end;
    if (!again) {
      matches.push_back(match);
    }
    at = match.end;
    if (match.begin == match.end) {
      at += at < text.size() ? character_bytes(text[at]) : 1;
    }
  }
  return matches;
}

}  // namespace zoexport
