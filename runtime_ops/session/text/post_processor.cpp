#include "session/text/post_processor.h"

#include <string>

#include "session/text/vocabulary.h"

namespace zoexport {
namespace {

const char* const kKinds = "Sequence, TemplateProcessing, ByteLevel, RobertaProcessing or BertProcessing";

uint32_t token(const JsonNode& node) { return static_cast<uint32_t>(node.integer(0, kMostTokens - 1)); }

}  // namespace

PostProcessor PostProcessor::read(const JsonNode& root) {
  PostProcessor made;
  if (root.has("post_processor")) {
    made.add(root.member("post_processor"));
  }
  return made;
}

std::vector<uint32_t> PostProcessor::apply(const std::vector<uint32_t>& ids, bool behind) const {
  std::vector<uint32_t> result(before_);
  result.insert(result.end(), ids.begin(), ids.end());
  if (behind) {
    result.insert(result.end(), behind_.begin(), behind_.end());
  }
  return result;
}

void PostProcessor::add(const JsonNode& node) {
  const std::string kind = node.member("type").text();
  if (kind == "Sequence") {
    for (const JsonNode& one : node.member("processors").items()) {
      add(one);
    }
  } else if (kind == "TemplateProcessing") {
    add_template(node);
  } else if (kind == "RobertaProcessing" || kind == "BertProcessing") {
    for (const char* name : {"cls", "sep"}) {
      const std::vector<JsonNode> pair = node.member(name).items();
      if (pair.size() != 2) {
        node.member(name).problem("a token and its number");
        return;
      }
      if (name[0] == 'c') {
        before_.insert(before_.begin(), token(pair[1]));
      } else {
        behind_.push_back(token(pair[1]));
      }
    }
  } else if (kind != "ByteLevel") {  // which changes no tokens
    node.member("type").problem(kKinds);
  }
}

void PostProcessor::add_template(const JsonNode& node) {
  std::vector<uint32_t> before;
  std::vector<uint32_t> behind;
  size_t texts = 0;
  for (const JsonNode& piece : node.member("single").items()) {
    if (piece.has("Sequence")) {
      ++texts;
      continue;
    }
    const std::string name = piece.member("SpecialToken").member("id").text();
    const JsonNode known = node.member("special_tokens");
    if (!known.is_object() || !known.has(name.c_str())) {
      piece.problem("a token of special_tokens");
      return;
    }
    for (const JsonNode& id : known.member(name.c_str()).member("ids").items()) {
      (texts == 0 ? before : behind).push_back(token(id));
    }
  }
  if (texts != 1) {
    node.member("single").problem("the text once");
  }
  before_.insert(before_.begin(), before.begin(), before.end());
  behind_.insert(behind_.end(), behind.begin(), behind.end());
}

}  // namespace zoexport
