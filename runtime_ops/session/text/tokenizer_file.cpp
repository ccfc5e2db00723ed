#include "session/text/tokenizer_file.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "session/storage/json_builder.h"
#include "session/storage/json_reader.h"

namespace zoexport {
namespace {

using nlohmann::json;

// Merges as they are written, until the vocabulary is whole.
class WrittenMerges {
 public:
  void add(std::string_view left, std::string_view right) {
    text_.append(left).append(right);
    lengths_.push_back(static_cast<uint32_t>(left.size()));
    lengths_.push_back(static_cast<uint32_t>(right.size()));
  }
  size_t size() const { return lengths_.size() / 2; }

  // Calls `each` with the two parts of every merge, until it answers false.
  template <typename Each>
  bool all(Each each) const {
    size_t at = 0;
    for (size_t i = 0; i < lengths_.size(); i += 2) {
      const std::string_view left(text_.data() + at, lengths_[i]);
      const std::string_view right(text_.data() + at + lengths_[i], lengths_[i + 1]);
      at += left.size() + right.size();
      if (!each(left, right)) {
        return false;
      }
    }
    return true;
  }

 private:
  std::string text_;
  std::vector<uint32_t> lengths_;
};

// Keeps the vocabulary and the merges for itself, and leaves all else to the builder.
class Reader : public nlohmann::json_sax<json> {
 public:
  bool null() override { return mine() ? unfit() : builder_.null(); }
  bool boolean(bool value) override { return mine() ? unfit() : builder_.boolean(value); }
  bool number_integer(number_integer_t value) override {
    return mine() ? score(static_cast<double>(value)) : builder_.number_integer(value);
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (part_ != Part::kVocabulary) {
      return mine() ? score(static_cast<double>(value)) : builder_.number_unsigned(value);
    }
    if (value >= kMostTokens) {
      return refuse("the token number " + std::to_string(value) + " in model.vocab, beyond " +
                    std::to_string(kMostTokens));
    }
    return file_.vocabulary.add(key_, static_cast<uint32_t>(value)) ||
           refuse("a token or a number that model.vocab has twice");
  }
  bool number_float(number_float_t value, const string_t& written) override {
    return mine() ? score(value) : builder_.number_float(value, written);
  }
  bool string(string_t& value) override {
    if (part_ == Part::kPieces && depth_ == 4) {
      pair_.push_back(std::move(value));
      return (pair_.size() == 1 && !score_) || unfit();
    }
    if (part_ != Part::kMerges) {
      return mine() ? unfit() : builder_.string(value);
    }
    if (depth_ == 4) {
      pair_.push_back(std::move(value));
      return pair_.size() <= 2 || unfit();
    }
    const size_t blank = value.find(' ');
    if (blank == std::string::npos || value.find(' ', blank + 1) != std::string::npos) {
      return unfit();
    }
    merges_.add(std::string_view(value).substr(0, blank), std::string_view(value).substr(blank + 1));
    return true;
  }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t size) override {
    return start(false) || (mine() ? stopped() : builder_.start_object(size));
  }
  bool start_array(std::size_t size) override {
    return start(true) || (mine() ? stopped() : builder_.start_array(size));
  }
  bool end_object() override { return end() || builder_.end_object(); }
  bool end_array() override {
    if (part_ == Part::kMerges && depth_ == 4) {
      if (pair_.size() != 2) {
        return unfit();
      }
      merges_.add(pair_[0], pair_[1]);
      pair_.clear();
    }
    if (part_ == Part::kPieces && depth_ == 4 && !add_piece()) {
      return false;
    }
    return end() || builder_.end_array();
  }
  bool key(string_t& value) override {
    if (mine()) {
      key_ = value;
      return true;
    }
    if (depth_ == 1) {
      in_model_ = value == "model";
    }
    if (depth_ == 2 && in_model_ && (value == "vocab" || value == "merges")) {
      awaited_ = value == "vocab" ? Part::kVocabulary : Part::kMerges;
      bool& had = value == "vocab" ? had_vocabulary_ : had_merges_;
      return !std::exchange(had, true) || refuse("an object with two members of the name " + value);
    }
    return builder_.key(value);
  }
  bool parse_error(std::size_t at, const std::string& token, const nlohmann::detail::exception& error) override {
    return builder_.parse_error(at, token, error);
  }

  // Why it was refused.
  std::string problem() const { return problem_.empty() ? builder_.problem() : problem_; }
  TokenizerFile& file() { return file_; }
  const WrittenMerges& merges() const { return merges_; }
  json root() { return builder_.take(); }

 private:
  enum class Part { kNone, kVocabulary, kPieces, kMerges, kSkipped };

  bool mine() const { return part_ != Part::kNone || awaited_ != Part::kNone; }
  // Return whether the list or object that begins is read here, not by the builder. Merges that are no list are
  // skipped: the model's type may follow them, and may have no merges.
  bool start(bool list) {
    ++depth_;
    if (awaited_ != Part::kNone) {
      part_ = awaited_ == Part::kVocabulary ? (list ? Part::kPieces : Part::kVocabulary)
                                            : (list ? Part::kMerges : Part::kSkipped);
      awaited_ = Part::kNone;
      return true;
    }
    if (part_ == Part::kSkipped) {
      return depth_ <= kMostNested ||
             refuse("more than " + std::to_string(kMostNested) + " lists and objects inside one another");
    }
    return (part_ == Part::kMerges || part_ == Part::kPieces) && list && depth_ == 4;
  }
  bool end() {
    const bool mine = part_ != Part::kNone;
    if (--depth_ == 2) {
      part_ = Part::kNone;
    }
    return mine;
  }
  // Read the score of a piece, after its text.
  bool score(double value) {
    if (part_ != Part::kPieces || depth_ != 4 || pair_.size() != 1 || score_) {
      return unfit();
    }
    score_ = value;
    return true;
  }
  bool add_piece() {
    if (!score_) {
      return unfit();
    }
    if (file_.scores.size() >= kMostTokens) {
      return refuse("more than " + std::to_string(kMostTokens) + " tokens in model.vocab");
    }
    if (!file_.vocabulary.add(pair_[0], static_cast<uint32_t>(file_.scores.size()))) {
      return refuse("a token that model.vocab has twice");
    }
    file_.scores.push_back(*std::exchange(score_, std::nullopt));
    pair_.clear();
    return true;
  }
  // A value where another one should be.
  bool unfit() { return part_ == Part::kSkipped || refuse("model.vocab or model.merges of another form"); }
  bool stopped() { return problem_.empty() && unfit(); }
  bool refuse(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  JsonBuilder<> builder_;
  TokenizerFile file_;
  WrittenMerges merges_;
  std::vector<std::string> pair_;  // of a merge; the text of a piece
  std::optional<double> score_;    // of that piece
  std::string key_;
  std::string problem_;
  Part part_ = Part::kNone;
  Part awaited_ = Part::kNone;  // the part that is the next value
  size_t depth_ = 0;            // lists and objects that are open
  bool in_model_ = false;
  bool had_vocabulary_ = false;
  bool had_merges_ = false;
};

// Numbers in place of the texts of merges.
Status resolve(const WrittenMerges& written, const std::string& prefix, TokenizerFile& file, const std::string& where) {
  file.merges.reserve(written.size());
  std::string made;
  const bool known = written.all([&](std::string_view left, std::string_view right) {
    made = left;
    made.append(right.substr(std::min(prefix.size(), right.size())));
    const auto a = file.vocabulary.find(left);
    const auto b = file.vocabulary.find(right);
    const auto c = file.vocabulary.find(made);
    if (a && b && c) {
      file.merges.push_back({*a, *b, *c});
    }
    return a && b && c;
  });
  if (!known) {
    return Failure{ZO_BUNDLE_ERROR, where + ", model.merges",
                   "merge " + std::to_string(file.merges.size()) + " of tokens that model.vocab lacks",
                   "merges of tokens in it, to tokens in it", kOtherTokenizer};
  }
  return {};
}

}  // namespace

Result<TokenizerFile> parse_tokenizer_file(std::string_view text, const std::string& where) {
  Reader reader;
  const Status read =
      read_json(text.data(), text.data() + text.size(), ZO_BUNDLE_ERROR, where, kOtherTokenizer, reader, "");
  if (!read.ok()) {
    Failure failure = read.failure();
    failure.found = failure.found.empty() ? reader.problem() : failure.found;
    return failure;
  }
  TokenizerFile file = std::move(reader.file());
  file.root = reader.root();
  JsonProblems problems(ZO_BUNDLE_ERROR, where, kOtherTokenizer);
  const JsonNode model = JsonNode(&file.root, "", &problems).member("model");
  ZO_TRY(problems.status());
  // A model of another type is refused by the tokenizer, because of its type.
  if (!model.is_object() || (model.has("type") && model.member("type").text() != "BPE")) {
    return file;
  }
  const bool prefixed = model.has("continuing_subword_prefix");
  const std::string prefix = prefixed ? model.member("continuing_subword_prefix").text() : "";
  ZO_TRY(problems.status());
  ZO_TRY(resolve(reader.merges(), prefix, file, where));
  return file;
}

}  // namespace zoexport
