// What is done to a text before it is cut: the "normalizer" of a tokenizer.json.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "session/result.h"
#include "session/storage/json_reader.h"

namespace zoexport {

class Normalizer {
 public:
  // Read the optional member of the root of a tokenizer.json. An unknown kind is a problem of the document.
  static Result<Normalizer> read(const JsonNode& root);

  Normalizer(Normalizer&&) noexcept;
  ~Normalizer();

  Result<std::string> apply(std::string text) const;

 private:
  struct Step;
  Normalizer();
  static Status add(const JsonNode& node, std::vector<Step>& steps);
  static void add_bert(const JsonNode& node, std::vector<Step>& steps);

  std::vector<Step> steps_;
};

}  // namespace zoexport
