// A bundle's tokenizer: text to tokens and back, as the library tokenizers has it (docs/formats.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "session/manifest/bundle_files.h"
#include "session/result.h"
#include "session/text/decoder.h"

namespace zoexport {

// Streaming decoder of tokens. Text that may still change, such as an incomplete character, is held back.
class TextStream {
 public:
  // The text that is certain with this token.
  Result<std::string> push(int64_t id);
  // The rest.
  std::string finish() { return text_.finish(); }

 private:
  friend class Tokenizer;
  TextStream(const class Tokenizer& tokenizer, TextOfTokens text, bool skip_special)
      : tokenizer_(tokenizer), text_(std::move(text)), skip_special_(skip_special) {}

  const class Tokenizer& tokenizer_;
  TextOfTokens text_;
  bool skip_special_;
};

// Special tokens around a text that are taken: none, those before it (for a prompt whose text continues), or all.
enum class Special { kNone, kBefore, kAll };

// Used by one thread at a time, as it keeps the words that it has seen.
class Tokenizer {
 public:
  // Parse the content of a tokenizer.json; `where` names it. Kinds that this version does not support are refused.
  static Result<Tokenizer> parse(std::string_view json, const std::string& where);
  // The file tokenizer.json of a bundle, checked as all of its files are.
  static Result<Tokenizer> open(const BundleFiles& files, const Manifest& manifest);

  Tokenizer(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Tokens of a text, which is UTF-8. Special tokens that the text names are always found.
  Result<std::vector<int64_t>> encode(std::string_view text, Special special) const;
  // Text of tokens, `skip_special`: without special ones.
  Result<std::string> decode(const std::vector<int64_t>& ids, bool skip_special) const;
  // The same, token by token. The tokenizer outlives it.
  TextStream stream(bool skip_special) const;

  // The token of exactly this text.
  std::optional<int64_t> id(const std::string& text) const;
  // Return whether a token with this text or number is special.
  bool special(const std::string& text) const;
  bool special(int64_t id) const;

 private:
  friend class TextStream;
  struct Parts;
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  // Nothing for a number without a token, whose text is none, as in tokenizers.
  std::optional<std::string> token(int64_t id) const;

  std::unique_ptr<Parts> parts_;
};

}  // namespace zoexport
