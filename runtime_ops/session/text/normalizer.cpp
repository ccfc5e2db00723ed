#include "session/text/normalizer.h"

#include <algorithm>
#include <optional>

#include "session/text/byte_characters.h"
#include "session/text/pattern.h"
#include "session/text/unicode_normal.h"
#include "session/text/utf8.h"

namespace zoexport {
namespace {

const char* const kKinds = "Sequence, Replace, Prepend, NFC, NFD, NFKC, NFKD, Strip or ByteLevel";

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

}  // namespace

struct Normalizer::Step {
  enum class Kind { kReplace, kPrepend, kForm, kStrip, kBytes };
  Kind kind;
  std::optional<Pattern> pattern = {};
  std::string content = {};
  NormalForm form = NormalForm::kNfc;
  bool left = false;
  bool right = false;
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
    steps.push_back({Step::Kind::kReplace, std::move(pattern), node.member("content").text()});
  } else if (kind == "Prepend") {
    steps.push_back({Step::Kind::kPrepend, {}, node.member("prepend").text()});
  } else if (kind == "Strip") {
    Step step{Step::Kind::kStrip};
    step.left = node.member("strip_left").boolean();
    step.right = node.member("strip_right").boolean();
    steps.push_back(std::move(step));
  } else if (kind == "ByteLevel") {
    steps.push_back({Step::Kind::kBytes});
  } else if (kind == "NFC" || kind == "NFD" || kind == "NFKC" || kind == "NFKD") {
    Step step{Step::Kind::kForm};
    step.form = kind == "NFC"    ? NormalForm::kNfc
                : kind == "NFD"  ? NormalForm::kNfd
                : kind == "NFKC" ? NormalForm::kNfkc
                                 : NormalForm::kNfkd;
    steps.push_back(std::move(step));
  } else {
    node.member("type").problem(kKinds);
  }
  return {};
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
    }
  }
  return text;
}

}  // namespace zoexport
