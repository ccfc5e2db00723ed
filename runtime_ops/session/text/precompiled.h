// SentencePiece's table of texts and what each becomes: the normalizer "Precompiled" of a tokenizer.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "session/result.h"
#include "session/storage/json_reader.h"
#include "session/text/regex.h"

namespace zoexport {

class Precompiled {
 public:
  // `node` is the table in base64: the size of a double-array trie, its units, then the texts that its values lead to.
  static Result<Precompiled> read(const JsonNode& node);

  Result<std::string> apply(std::string_view text) const;

 private:
  Precompiled(std::vector<uint32_t> units, std::string texts, Regex clusters)
      : units_(std::move(units)), texts_(std::move(texts)), clusters_(std::move(clusters)) {}
  std::optional<std::string_view> changed(std::string_view part) const;
  Status append(std::string_view cluster, std::string& made) const;

  std::vector<uint32_t> units_;
  std::string texts_;  // each ends with a zero
  Regex clusters_;
};

}  // namespace zoexport
