#include "session/text/decoder.h"

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "session/text/byte_characters.h"
#include "session/text/made_text.h"
#include "session/text/pattern.h"
#include "session/text/utf8.h"
#include "session/text/vocabulary.h"

namespace zoexport {
namespace {

const char* const kKinds = "Sequence, ByteLevel, ByteFallback, Metaspace, WordPiece, Replace, Strip or Fuse";

// Applies a function to every token.
class EachToken : public DecoderStage {
 public:
  using Function = std::function<std::string(const std::string& token, bool first)>;
  explicit EachToken(Function function) : function_(std::move(function)) {}
  void push(std::string piece, const Next& next) override {
    next(function_(piece, first_));
    first_ = false;
  }
  void finish(const Next& next) override { (void)next; }

 private:
  Function function_;
  bool first_ = true;
};

// Byte-level tokens: their bytes together are UTF-8.
class Bytes : public DecoderStage {
 public:
  void push(std::string piece, const Next& next) override {
    const auto bytes = characters_as_bytes(piece);
    next(stream_.push(bytes ? *bytes : piece));
  }
  void finish(const Next& next) override { next(stream_.finish()); }

 private:
  Utf8Stream stream_;
};

// Tokens <0x00> to <0xFF>. A run of them that is no UTF-8 is as many U+FFFD, so it waits for its end.
class FallbackBytes : public DecoderStage {
 public:
  void push(std::string piece, const Next& next) override {
    if (const auto byte = fallback(piece)) {
      run_.push_back(*byte);
      return;
    }
    finish(next);
    next(std::move(piece));
  }
  void finish(const Next& next) override {
    if (run_.empty()) {
      return;
    }
    std::string text = run_;
    if (valid_utf8(run_) != run_.size()) {
      text.clear();
      for (size_t i = 0; i < run_.size(); ++i) {
        text += kReplacementCharacter;
      }
    }
    run_.clear();
    next(std::move(text));
  }

 private:
  static std::optional<char> fallback(const std::string& token) {
    if (token.size() != 6 || token.compare(0, 3, "<0x") != 0 || token.back() != '>') {
      return std::nullopt;
    }
    int value = 0;
    for (size_t i = 3; i < 5; ++i) {
      const char digit = token[i];
      const int number = digit >= '0' && digit <= '9'   ? digit - '0'
                         : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10
                         : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
                                                        : -1;
      if (number < 0 && !(i == 3 && digit == '+')) {  // a sign, which Rust reads
        return std::nullopt;
      }
      value = 16 * value + (number < 0 ? 0 : number);
    }
    return static_cast<char>(value);
  }

  std::string run_;
};

// Holds everything back until there is no more, where the next stage needs the whole text.
class Whole : public DecoderStage {
 public:
  void push(std::string piece, const Next& next) override {
    (void)next;
    text_ += piece;
  }
  void finish(const Next& next) override { next(std::move(text_)); }

 private:
  std::string text_;
};

// Leaves out the first characters of a text that are `content`, at most `count`.
class StripStart : public DecoderStage {
 public:
  StripStart(std::string content, uint64_t count) : content_(std::move(content)), count_(count) {}
  void push(std::string piece, const Next& next) override {
    size_t begin = 0;
    while (count_ > 0 && begin < piece.size()) {
      if (piece.compare(begin, content_.size(), content_) != 0) {
        count_ = 0;
        break;
      }
      begin += content_.size();
      --count_;
    }
    next(piece.substr(begin));
  }
  void finish(const Next& next) override { (void)next; }

 private:
  std::string content_;
  uint64_t count_;
};

// Strip `content` from one token.
std::string stripped(const std::string& token, const std::string& content, uint64_t start, uint64_t stop) {
  const size_t size = content.size();
  size_t begin = 0;
  for (; start > 0 && token.compare(begin, size, content) == 0; --start) {
    begin += size;
  }
  size_t end = token.size();
  for (; stop > 0 && end >= size && token.compare(end - size, size, content) == 0; --stop) {
    end -= size;
  }
  return begin < end ? token.substr(begin, end - begin) : "";
}

// A token of WordPiece: one without the prefix begins a word; `clean`: without blanks before punctuation.
std::string word_piece_text(const std::string& token, bool first, const std::string& prefix, bool clean) {
  static constexpr std::array<std::pair<const char*, const char*>, 11> kClean = {{{" .", "."},
                                                                                  {" ?", "?"},
                                                                                  {" !", "!"},
                                                                                  {" ,", ","},
                                                                                  {" ' ", "'"},
                                                                                  {" n't", "n't"},
                                                                                  {" 'm", "'m"},
                                                                                  {" do not", " don't"},
                                                                                  {" 's", "'s"},
                                                                                  {" 've", "'ve"},
                                                                                  {" 're", "'re"}}};
  const bool inside = token.compare(0, prefix.size(), prefix) == 0;
  std::string text = first ? token : inside ? token.substr(prefix.size()) : " " + token;
  if (clean) {
    for (const auto& [from, to] : kClean) {
      text = *Pattern::exactly(from).replaced(text, to);
    }
  }
  return text;
}

}  // namespace

std::string TextOfTokens::push(const std::string& token) {
  std::string text;
  pass(0, token, text);
  return text;
}

std::string TextOfTokens::finish() {
  std::string text;
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    stages_[stage]->finish([&](std::string piece) { pass(stage + 1, std::move(piece), text); });
  }
  return text;
}

void TextOfTokens::pass(size_t stage, std::string piece, std::string& text) {
  if (stage == stages_.size()) {
    text += piece;
    return;
  }
  stages_[stage]->push(std::move(piece), [&](std::string made) { pass(stage + 1, std::move(made), text); });
}

TextDecoder TextDecoder::read(const JsonNode& root) {
  TextDecoder decoder;
  if (root.has("decoder")) {
    decoder.add(root.member("decoder"));
  } else {
    // Without one, tokens are words.
    decoder.makers_.emplace_back([] {
      return std::make_unique<EachToken>(
          [](const std::string& token, bool first) { return first ? token : " " + token; });
    });
  }
  return decoder;
}

TextOfTokens TextDecoder::begin() const {
  std::vector<std::unique_ptr<DecoderStage>> stages;
  stages.reserve(makers_.size());
  for (const Maker& maker : makers_) {
    stages.push_back(maker());
  }
  return TextOfTokens(std::move(stages));
}

void TextDecoder::add(const JsonNode& node) {
  const std::string kind = node.member("type").text();
  if (kind == "Sequence") {
    for (const JsonNode& one : node.member("decoders").items()) {
      add(one);
    }
    return;
  }
  if (kind == "Strip") {
    add_strip(node);
    return;
  }
  if (kind == "Fuse") {
    pieces_ = Pieces::kText;
    return;
  }
  if (pieces_ == Pieces::kText) {
    makers_.emplace_back([] { return std::make_unique<Whole>(); });
    pieces_ = Pieces::kTokens;
  }
  if (kind == "ByteLevel") {
    makers_.emplace_back([] { return std::make_unique<Bytes>(); });
    pieces_ = Pieces::kText;
  } else if (kind == "ByteFallback") {
    makers_.emplace_back([] { return std::make_unique<FallbackBytes>(); });
  } else if (kind == "Metaspace") {
    const std::string blank = node.member("replacement").text();
    const bool never = node.has("prepend_scheme") && node.member("prepend_scheme").text() == "never";
    makers_.emplace_back([blank, never] {
      return std::make_unique<EachToken>([blank, never](const std::string& token, bool first) {
        return *Pattern::exactly(blank).replaced(token, first && !never ? "" : " ");
      });
    });
  } else if (kind == "WordPiece") {
    const std::string prefix = node.member("prefix").text();
    const bool clean = node.member("cleanup").boolean();
    makers_.emplace_back([prefix, clean] {
      return std::make_unique<EachToken>([prefix, clean](const std::string& token, bool first) {
        return word_piece_text(token, first, prefix, clean);
      });
    });
  } else if (kind == "Replace") {
    if (!node.member("pattern").has("String")) {
      node.member("pattern").problem("a String");
      return;
    }
    const std::string text = node.member("pattern").member("String").text();
    const std::string content = content_text(node.member("content"));
    makers_.emplace_back([text, content] {
      return std::make_unique<EachToken>([text, content](const std::string& token, bool first) {
        (void)first;
        return *Pattern::exactly(text).replaced(token, content);
      });
    });
  } else {
    node.member("type").problem(kKinds);
  }
}

void TextDecoder::add_strip(const JsonNode& node) {
  const std::string content = node.member("content").text();
  const uint64_t start = node.member("start").unsigned_integer();
  const uint64_t stop = node.member("stop").unsigned_integer();
  if (content.empty() || content.size() != character_bytes(content[0])) {
    node.member("content").problem("one character");
    return;
  }
  if (pieces_ == Pieces::kText && stop == 0) {
    makers_.emplace_back([content, start] { return std::make_unique<StripStart>(content, start); });
    return;
  }
  if (pieces_ == Pieces::kText) {
    makers_.emplace_back([] { return std::make_unique<Whole>(); });
  }
  makers_.emplace_back([content, start, stop] {
    return std::make_unique<EachToken>([content, start, stop](const std::string& token, bool first) {
      (void)first;
      return stripped(token, content, start, stop);
    });
  });
}

}  // namespace zoexport
