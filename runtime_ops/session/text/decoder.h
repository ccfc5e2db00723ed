// Tokens to text, one by one: the "decoder" of a tokenizer.json.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "session/result.h"
#include "session/storage/json_reader.h"

namespace zoexport {

// One step of a decoder in the middle of a text. It passes on what no later piece can change any more.
class DecoderStage {
 public:
  using Next = std::function<void(std::string)>;

  virtual ~DecoderStage() = default;
  virtual void push(std::string piece, const Next& next) = 0;
  virtual void finish(const Next& next) = 0;
};

// Incremental decoder of tokens. The returned texts, joined, are the text of all tokens at once.
class TextOfTokens {
 public:
  explicit TextOfTokens(std::vector<std::unique_ptr<DecoderStage>> stages) : stages_(std::move(stages)) {}
  std::string push(const std::string& token);
  std::string finish();

 private:
  void pass(size_t stage, std::string piece, std::string& text);

  std::vector<std::unique_ptr<DecoderStage>> stages_;
};

class TextDecoder {
 public:
  // Read the optional member of the root of a tokenizer.json. An unknown kind is a problem of the document.
  static TextDecoder read(const JsonNode& root);

  TextOfTokens begin() const;

 private:
  using Maker = std::function<std::unique_ptr<DecoderStage>()>;
  // Kind of pieces: tokens, or parts of the whole text cut at any position.
  enum class Pieces { kTokens, kText };

  void add(const JsonNode& node);
  void add_strip(const JsonNode& node);

  std::vector<Maker> makers_;
  Pieces pieces_ = Pieces::kTokens;
};

}  // namespace zoexport
