// Tokens that a tokenizer writes around those of a text: the "post_processor" of a tokenizer.json.
#pragma once

#include <cstdint>
#include <vector>

#include "session/result.h"
#include "session/storage/json_reader.h"

namespace zoexport {

class PostProcessor {
 public:
  // Read the optional member of the root of a tokenizer.json. An unknown kind is a problem of the document.
  static PostProcessor read(const JsonNode& root);

  // `behind`: also those that follow the text.
  std::vector<uint32_t> apply(const std::vector<uint32_t>& ids, bool behind) const;

 private:
  void add(const JsonNode& node);
  void add_template(const JsonNode& node);

  std::vector<uint32_t> before_;
  std::vector<uint32_t> behind_;
};

}  // namespace zoexport
