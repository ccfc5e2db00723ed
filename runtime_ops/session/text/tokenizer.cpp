#include "session/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "session/storage/files.h"
#include "session/storage/json_reader.h"
#include "session/text/added_tokens.h"
#include "session/text/normalizer.h"
#include "session/text/post_processor.h"
#include "session/text/pre_tokenizer.h"
#include "session/text/token_model.h"
#include "session/text/tokenizer_file.h"
#include "session/text/utf8.h"

namespace zoexport {
namespace {

const char* const kFile = "tokenizer.json";
constexpr size_t kLongestText = size_t{64} << 20;

}  // namespace

struct Tokenizer::Parts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  AddedTokens added;
  TokenModel model;
  PostProcessor post_processor;
  TextDecoder decoder;
};

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::parse(std::string_view json, const std::string& where) {
  ZO_ASSIGN(file, parse_tokenizer_file(json, where));
  JsonProblems problems(ZO_BUNDLE_ERROR, where, kOtherTokenizer);
  const JsonNode root(&file.root, "", &problems);
  ZO_ASSIGN(model, TokenModel::read(file, root, problems));
  ZO_ASSIGN(normalizer, Normalizer::read(root));
  ZO_ASSIGN(pre_tokenizer, PreTokenizer::read(root));
  const PostProcessor post_processor = PostProcessor::read(root);
  const TextDecoder decoder = TextDecoder::read(root);
  ZO_TRY(problems.status());
  ZO_ASSIGN(added, AddedTokens::read(root, model.vocabulary(), normalizer));
  ZO_TRY(problems.status());
  return Tokenizer(std::unique_ptr<Parts>(new Parts{std::move(normalizer), std::move(pre_tokenizer), std::move(added),
                                                    std::move(model), post_processor, decoder}));
}

Result<Tokenizer> Tokenizer::open(const BundleFiles& files, const Manifest& manifest) {
  const std::string where = join(files.path(), kFile);
  if (std::find(manifest.tokenizer.begin(), manifest.tokenizer.end(), kFile) == manifest.tokenizer.end()) {
    return Failure{ZO_BUNDLE_ERROR, where, "no such file in the bundle",
                   "the file that transformers saves of a tokenizer",
                   "Compile a model whose folder has a tokenizer.json."};
  }
  ZO_ASSIGN(file, files.open(kFile));
  ZO_ASSIGN(text, file.read());
  return parse(text, where);
}

Result<std::vector<int64_t>> Tokenizer::encode(std::string_view text, Special special) const {
  if (text.size() > kLongestText) {
    return Failure{ZO_DATA_ERROR, "text", std::to_string(text.size()) + " bytes",
                   "at most " + std::to_string(kLongestText), "Give it in parts."};
  }
  const size_t valid = valid_utf8(text);
  if (valid != text.size()) {
    return Failure{ZO_DATA_ERROR, "text", "byte " + std::to_string(valid) + " that is no UTF-8", "UTF-8",
                   "Give the text as UTF-8."};
  }
  std::vector<uint32_t> ids;
  std::vector<Word> words;
  for (const AddedTokens::Segment& outer : parts_->added.find(text, false)) {
    if (outer.id) {
      ids.push_back(*outer.id);
      continue;
    }
    const std::string_view raw = text.substr(outer.span.begin, outer.span.end - outer.span.begin);
    ZO_ASSIGN(normal, parts_->normalizer.apply(std::string(raw)));
    for (const AddedTokens::Segment& inner : parts_->added.find(normal, true)) {
      if (inner.id) {
        ids.push_back(*inner.id);
        continue;
      }
      words.clear();
      words.push_back({normal.substr(inner.span.begin, inner.span.end - inner.span.begin),
                       outer.span.begin == 0 && inner.span.begin == 0});
      ZO_TRY(parts_->pre_tokenizer.apply(words));
      for (const Word& word : words) {
        parts_->model.encode(word.text, ids);
      }
    }
  }
  if (special != Special::kNone) {
    ids = parts_->post_processor.apply(ids, special == Special::kAll);
  }
  return std::vector<int64_t>(ids.begin(), ids.end());
}

Result<std::string> Tokenizer::decode(const std::vector<int64_t>& ids, bool skip_special) const {
  TextStream text = stream(skip_special);
  std::string result;
  for (const int64_t id : ids) {
    ZO_ASSIGN(piece, text.push(id));
    result += piece;
  }
  return result + text.finish();
}

TextStream Tokenizer::stream(bool skip_special) const { return {*this, parts_->decoder.begin(), skip_special}; }

Result<std::string> TextStream::push(int64_t id) {
  if (id < 0 || id > UINT32_MAX) {
    return Failure{ZO_DATA_ERROR, "token", std::to_string(id), "a number of 0 to 4294967295",
                   "Give tokens of this model."};
  }
  const std::optional<std::string> token = tokenizer_.token(id);
  if (!token || (skip_special_ && tokenizer_.special(*token))) {
    return std::string();
  }
  return text_.push(*token);
}

std::optional<int64_t> Tokenizer::id(const std::string& text) const {
  if (const auto added = parts_->added.id(text)) {
    return *added;
  }
  const auto known = parts_->model.vocabulary().find(text);
  return known ? std::optional<int64_t>(*known) : std::nullopt;
}

bool Tokenizer::special(const std::string& text) const { return parts_->added.special(text); }

bool Tokenizer::special(int64_t id) const {
  const auto text = token(id);
  return text && special(*text);
}

std::optional<std::string> Tokenizer::token(int64_t id) const {
  if (const std::string* text = parts_->added.text(static_cast<uint32_t>(id))) {
    return *text;
  }
  const auto text = parts_->model.vocabulary().text(static_cast<uint32_t>(id));
  return text ? std::optional<std::string>(*text) : std::nullopt;
}

}  // namespace zoexport
