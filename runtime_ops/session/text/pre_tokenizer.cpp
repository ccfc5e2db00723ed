#include "session/text/pre_tokenizer.h"

#include <array>
#include <optional>
#include <utility>

#include "session/text/byte_characters.h"
#include "session/text/characters.h"
#include "session/text/pattern.h"
#include "session/text/splits.h"
#include "session/text/utf8.h"

namespace zoexport {
namespace {

const char* const kKinds =
    "Sequence, Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, "
    "WhitespaceSplit or BertPreTokenizer";
const char* const kWordsOfGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Behavior behavior(const JsonNode& node) {
  static const std::array<std::pair<const char*, Behavior>, 5> kNames = {
      {{"Removed", Behavior::kRemoved},
       {"Isolated", Behavior::kIsolated},
       {"MergedWithPrevious", Behavior::kMergedWithPrevious},
       {"MergedWithNext", Behavior::kMergedWithNext},
       {"Contiguous", Behavior::kContiguous}}};
  const std::string text = node.text();
  for (const auto& [name, value] : kNames) {
    if (text == name) {
      return value;
    }
  }
  node.problem("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
  return Behavior::kIsolated;
}

}  // namespace

struct PreTokenizer::Step {
  enum class Prepend { kNever, kFirst, kAlways };
  std::string replacement = {};       // of blanks
  Prepend prepend = Prepend::kNever;  // where a word does not begin with it already:
  std::string prefix = {};
  std::optional<Pattern> pattern = {};  // cuts words
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;  // what does not match is what matches
  bool bytes = false;   // as characters, at last
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

Result<PreTokenizer> PreTokenizer::read(const JsonNode& root) {
  PreTokenizer made;
  if (root.has("pre_tokenizer")) {
    ZO_TRY(add(root.member("pre_tokenizer"), made.steps_));
  }
  return made;
}

Status PreTokenizer::add(const JsonNode& node, std::vector<Step>& steps) {
  const std::string kind = node.member("type").text();
  Step step;
  if (kind == "Sequence") {
    for (const JsonNode& one : node.member("pretokenizers").items()) {
      ZO_TRY(add(one, steps));
    }
    return {};
  }
  if (kind == "Split") {
    ZO_ASSIGN(pattern, Pattern::read(node.member("pattern")));
    step.pattern.emplace(std::move(pattern));
    step.behavior = behavior(node.member("behavior"));
    step.invert = node.member("invert").boolean();
  } else if (kind == "ByteLevel") {
    if (node.member("add_prefix_space").boolean()) {
      step.prepend = Step::Prepend::kAlways;
      step.prefix = " ";
    }
    if (!node.has("use_regex") || node.member("use_regex").boolean()) {
      ZO_ASSIGN(pattern, Pattern::regex(kWordsOfGpt2, node.where()));
      step.pattern.emplace(std::move(pattern));
    }
    step.bytes = true;
  } else if (kind == "Metaspace") {
    step.replacement = step.prefix = node.member("replacement").text();
    const bool never = node.has("add_prefix_space") && !node.member("add_prefix_space").boolean();
    const std::string scheme = node.has("prepend_scheme") ? node.member("prepend_scheme").text() : "always";
    if ((scheme != "always" && scheme != "first" && scheme != "never") || (never && scheme != "never")) {
      node.member("prepend_scheme").problem("always, first, or never, as add_prefix_space says");
    }
    if (step.prefix.empty() || step.prefix.size() != character_bytes(step.prefix[0])) {
      node.member("replacement").problem("one character");
    }
    step.prepend = scheme == "always"  ? Step::Prepend::kAlways
                   : scheme == "first" ? Step::Prepend::kFirst
                                       : Step::Prepend::kNever;
    if (!node.has("split") || node.member("split").boolean()) {
      step.pattern.emplace(Pattern::exactly(step.replacement));
      step.behavior = Behavior::kMergedWithNext;
    }
  } else if (kind == "Digits") {
    step.pattern.emplace(Pattern::each(is_numeric));
    const bool single = node.has("individual_digits") && node.member("individual_digits").boolean();
    step.behavior = single ? Behavior::kIsolated : Behavior::kContiguous;
  } else if (kind == "Punctuation") {
    step.pattern.emplace(Pattern::each(is_punctuation));
    step.behavior = node.has("behavior") ? behavior(node.member("behavior")) : Behavior::kIsolated;
  } else if (kind == "Whitespace" || kind == "WhitespaceSplit" || kind == "BertPreTokenizer") {
    step.pattern.emplace(Pattern::each(is_white_space));
    step.behavior = Behavior::kRemoved;
    if (kind != "WhitespaceSplit") {
      steps.push_back(std::move(step));
      step = {};
      const bool bert = kind == "BertPreTokenizer";
      step.pattern.emplace(Pattern::each(bert ? is_punctuation : is_of_words));
      step.behavior = bert ? Behavior::kIsolated : Behavior::kContiguous;
    }
  } else {
    node.member("type").problem(kKinds);
  }
  steps.push_back(std::move(step));
  return {};
}

Status PreTokenizer::apply(std::vector<Word>& words) const {
  for (const Step& step : steps_) {
    std::vector<Word> cut;
    cut.reserve(words.size());
    for (Word& word : words) {
      if (!step.replacement.empty()) {
        ZO_ASSIGN(replaced, Pattern::exactly(" ").replaced(word.text, step.replacement));
        word.text = std::move(replaced);
      }
      if ((step.prepend == Step::Prepend::kAlways || (step.prepend == Step::Prepend::kFirst && word.first)) &&
          word.text.compare(0, step.prefix.size(), step.prefix) != 0) {
        word.text.insert(0, step.prefix);
      }
      if (!step.pattern) {
        if (step.bytes) {
          word.text = bytes_as_characters(word.text);
        }
        cut.push_back(std::move(word));
        continue;
      }
      ZO_ASSIGN(matches, step.pattern->find(word.text));
      std::vector<Part> found = parts(word.text, matches);
      for (Part& part : found) {
        part.match = part.match != step.invert;
      }
      for (const Span& piece : pieces(found, step.behavior)) {
        if (piece.begin < piece.end) {
          const std::string_view text = std::string_view(word.text).substr(piece.begin, piece.end - piece.begin);
          cut.push_back({step.bytes ? bytes_as_characters(text) : std::string(text), word.first && piece.begin == 0});
        }
      }
    }
    words = std::move(cut);
  }
  return {};
}

}  // namespace zoexport
