// Split of a text into words, so that tokens never cross words: the "pre_tokenizer" of a tokenizer.json.
#pragma once

#include <string>
#include <vector>

#include "session/result.h"
#include "session/storage/json_reader.h"

namespace zoexport {

struct Word {
  std::string text;
  bool first;  // whether the whole text begins with it
};

class PreTokenizer {
 public:
  // Read the optional member of the root of a tokenizer.json. An unknown kind is a problem of the document.
  static Result<PreTokenizer> read(const JsonNode& root);

  PreTokenizer(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // None of the words is empty, before and after.
  Status apply(std::vector<Word>& words) const;

 private:
  struct Step;
  PreTokenizer();
  static Status add(const JsonNode& node, std::vector<Step>& steps);

  std::vector<Step> steps_;
};

}  // namespace zoexport
