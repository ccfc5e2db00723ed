#include "session/text/token_model.h"

#include <string>

namespace zoexport {
namespace {

const char* const kKinds = "BPE, WordPiece or Unigram";
// Longest token in bytes for models that search byte by byte from each position of a text.
constexpr size_t kLongestPiece = 1024;

bool flag(const JsonNode& model, const char* name) { return model.has(name) && model.member(name).boolean(); }

std::optional<uint32_t> known(const JsonNode& token, const Vocabulary& vocabulary) {
  const auto id = vocabulary.find(token.text());
  if (!id) {
    token.problem("a token of model.vocab");
  }
  return id;
}

Bpe::Options bpe_options(const JsonNode& model, const Vocabulary& vocabulary) {
  Bpe::Options options;
  if (model.has("dropout") && model.member("dropout").number() != 0) {
    model.member("dropout").problem("none: tokens that are not left to chance");
  }
  if (model.has("unk_token")) {
    options.unknown = known(model.member("unk_token"), vocabulary);
  }
  if (model.has("continuing_subword_prefix")) {
    options.prefix = model.member("continuing_subword_prefix").text();
  }
  if (model.has("end_of_word_suffix")) {
    options.suffix = model.member("end_of_word_suffix").text();
  }
  options.fuse_unknown = flag(model, "fuse_unk");
  options.byte_fallback = flag(model, "byte_fallback");
  options.ignore_merges = flag(model, "ignore_merges");
  return options;
}

WordPiece::Options word_piece_options(const JsonNode& model, const Vocabulary& vocabulary) {
  WordPiece::Options options;
  options.unknown = known(model.member("unk_token"), vocabulary).value_or(0);
  if (model.has("continuing_subword_prefix")) {
    options.prefix = model.member("continuing_subword_prefix").text();
  }
  if (model.has("max_input_chars_per_word")) {
    options.most_characters = model.member("max_input_chars_per_word").unsigned_integer();
  }
  return options;
}

void check_lengths(const Vocabulary& vocabulary, JsonProblems& problems) {
  for (uint32_t id = 0, seen = 0; seen < vocabulary.size(); ++id) {
    const auto text = vocabulary.text(id);
    seen += text ? 1 : 0;
    if (text && text->size() > kLongestPiece) {
      problems.add("model.vocab", "token " + std::to_string(id) + " of " + std::to_string(text->size()) + " bytes",
                   "at most " + std::to_string(kLongestPiece));
      return;
    }
  }
}

}  // namespace

Result<TokenModel> TokenModel::read(TokenizerFile& file, const JsonNode& root, JsonProblems& problems) {
  const JsonNode model = root.member("model");
  const std::string kind = model.has("type") ? model.member("type").text() : "BPE";
  if (kind != "BPE" && kind != "WordPiece" && kind != "Unigram") {
    model.member("type").problem(kKinds);
  } else if (file.vocabulary.size() == 0 || file.scores.empty() == (kind == "Unigram")) {
    problems.add("model.vocab", file.vocabulary.size() == 0 ? "none" : "a vocabulary of another kind of model",
                 kind == "Unigram" ? "a list of tokens and their scores" : "a token and its number each");
  }
  ZO_TRY(problems.status());
  if (kind == "BPE") {
    const Bpe::Options options = bpe_options(model, file.vocabulary);
    ZO_TRY(problems.status());
    return TokenModel(Bpe(std::move(file.vocabulary), Merges(std::move(file.merges)), options));
  }
  check_lengths(file.vocabulary, problems);
  if (kind == "WordPiece") {
    const WordPiece::Options options = word_piece_options(model, file.vocabulary);
    ZO_TRY(problems.status());
    return TokenModel(WordPiece(std::move(file.vocabulary), options));
  }
  // Without one, tokenizers stops at the first character that it does not know.
  const auto unknown =
      static_cast<uint32_t>(model.member("unk_id").integer(0, static_cast<int64_t>(file.scores.size()) - 1));
  const bool byte_fallback = flag(model, "byte_fallback");
  ZO_TRY(problems.status());
  return TokenModel(Unigram(std::move(file.vocabulary), std::move(file.scores), unknown, byte_fallback));
}

}  // namespace zoexport
