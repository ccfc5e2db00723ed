#include "session/text/normalizer.h"

#include <algorithm>
#include <optional>

#include "session/text/byte_characters.h"
#include "session/text/characters.h"
#include "session/text/made_text.h"
#include "session/text/pattern.h"
#include "session/text/precompiled.h"
#include "session/text/unicode_normal.h"
#include "session/text/utf8.h"

namespace zoexport {
namespace {

const char* const kKinds =
    "Sequence, Replace, Prepend, NFC, NFD, NFKC, NFKD, Strip, StripAccents, Lowercase, BertNormalizer, "
    "Precompiled or ByteLevel";

std::string stripped(const std::string& text, bool left, bool right) {
  size_t begin = text.size();
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    if (!is_white_space(next_character(text, at))) {
      begin = std::min(begin, here);
      end = at;
    }
  }
  begin = left ? begin : 0;
  end = right ? std::max(begin, end) : text.size();
  return text.substr(begin, end - begin);
}

// BertNormalizer's changes of a character, one function each.
void append_clean(std::string& text, char32_t character) {
  if (!is_control(character)) {
    append_character(text, is_white_space(character) ? U' ' : character);
  }
}

void append_chinese(std::string& text, char32_t character) {
  const bool apart = is_chinese(character);
  text.append(apart ? " " : "");
  append_character(text, character);
  text.append(apart ? " " : "");
}

void append_without_accent(std::string& text, char32_t character) {
  if (!is_nonspacing_mark(character)) {
    append_character(text, character);
  }
}

void append_without_mark(std::string& text, char32_t character) {
  if (!is_mark(character)) {
    append_character(text, character);
  }
}

}  // namespace

struct Normalizer::Step {
  enum class Kind { kReplace, kPrepend, kForm, kStrip, kBytes, kEach, kPrecompiled };
  Kind kind;
  std::optional<Pattern> pattern = {};
  std::string content = {};
  NormalForm form = NormalForm::kNfc;
  bool left = false;
  bool right = false;
  void (*each)(std::string& text, char32_t character) = nullptr;
  std::optional<Precompiled> precompiled = {};

  static Step of_each(void (*each)(std::string&, char32_t)) {
    Step step{Kind::kEach};
    step.each = each;
    return step;
  }
  static Step of_form(NormalForm form) {
    Step step{Kind::kForm};
    step.form = form;
    return step;
  }
};

Normalizer::Normalizer() = default;
Normalizer::Normalizer(Normalizer&&) noexcept = default;
Normalizer::~Normalizer() = default;

Result<Normalizer> Normalizer::read(const JsonNode& root) {
  Normalizer normalizer;
  if (root.has("normalizer")) {
    ZO_TRY(add(root.member("normalizer"), normalizer.steps_));
  }
  return normalizer;
}

Status Normalizer::add(const JsonNode& node, std::vector<Step>& steps) {
  const std::string kind = node.member("type").text();
  if (kind == "Sequence") {
    for (const JsonNode& one : node.member("normalizers").items()) {
      ZO_TRY(add(one, steps));
    }
  } else if (kind == "Replace") {
    ZO_ASSIGN(pattern, Pattern::read(node.member("pattern")));
    steps.push_back({Step::Kind::kReplace, std::move(pattern), content_text(node.member("content"))});
  } else if (kind == "Prepend") {
    steps.push_back({Step::Kind::kPrepend, {}, content_text(node.member("prepend"))});
  } else if (kind == "Strip") {
    Step step{Step::Kind::kStrip};
    step.left = node.member("strip_left").boolean();
    step.right = node.member("strip_right").boolean();
    steps.push_back(std::move(step));
  } else if (kind == "ByteLevel") {
    steps.push_back({Step::Kind::kBytes});
  } else if (kind == "NFC" || kind == "NFD" || kind == "NFKC" || kind == "NFKD") {
    steps.push_back(Step::of_form(kind == "NFC"    ? NormalForm::kNfc
                                  : kind == "NFD"  ? NormalForm::kNfd
                                  : kind == "NFKC" ? NormalForm::kNfkc
                                                   : NormalForm::kNfkd));
  } else if (kind == "Lowercase") {
    steps.push_back(Step::of_each(append_lower));
  } else if (kind == "StripAccents") {
    steps.push_back(Step::of_each(append_without_mark));
  } else if (kind == "BertNormalizer") {
    add_bert(node, steps);
  } else if (kind == "Precompiled") {
    const JsonNode map = node.member("precompiled_charsmap");
    ZO_ASSIGN(read, Precompiled::read(map));
    Step step{Step::Kind::kPrecompiled};
    step.precompiled.emplace(std::move(read));
    steps.push_back(std::move(step));
  } else {
    node.member("type").problem(kKinds);
  }
  return {};
}

void Normalizer::add_bert(const JsonNode& node, std::vector<Step>& steps) {
  const bool lower = node.member("lowercase").boolean();
  if (node.member("clean_text").boolean()) {
    steps.push_back(Step::of_each(append_clean));
  }
  if (node.member("handle_chinese_chars").boolean()) {
    steps.push_back(Step::of_each(append_chinese));
  }
  if (node.has("strip_accents") ? node.member("strip_accents").boolean() : lower) {
    steps.push_back(Step::of_form(NormalForm::kNfd));
    steps.push_back(Step::of_each(append_without_accent));
  }
  if (lower) {
    steps.push_back(Step::of_each(append_lower));
  }
}

Result<std::string> Normalizer::apply(std::string text) const {
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::Kind::kReplace: {
        ZO_ASSIGN(replaced, step.pattern->replaced(text, step.content));
        text = std::move(replaced);
        break;
      }
      case Step::Kind::kPrepend:
        if (!text.empty()) {
          text.insert(0, step.content);
        }
        break;
      case Step::Kind::kForm:
        text = normalized(text, step.form);
        break;
      case Step::Kind::kStrip:
        text = stripped(text, step.left, step.right);
        break;
      case Step::Kind::kBytes:
        text = bytes_as_characters(text);
        break;
      case Step::Kind::kEach: {
        std::string made;
        made.reserve(text.size());
        for (size_t at = 0; at < text.size();) {
          step.each(made, next_character(text, at));
        }
        text = std::move(made);
        break;
      }
      case Step::Kind::kPrecompiled: {
        ZO_ASSIGN(made, step.precompiled->apply(text));
        text = std::move(made);
        break;
      }
    }
  }
  return text;
}

}  // namespace zoexport
