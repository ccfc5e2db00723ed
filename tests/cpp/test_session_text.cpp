// Tokenizers: UTF-8 in pieces, texts that come token by token, and files that a stranger wrote. That tokens are those of
// transformers is tested in Python.
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "session/chat/chat.h"
#include "session/generate/stopped_text.h"
#include "session/text/bpe.h"
#include "session/text/regex.h"
#include "session/text/tokenizer.h"
#include "session/text/unicode_normal.h"
#include "session/text/utf8.h"
#include "session/text/vocabulary.h"

using namespace zoexport;

namespace {

const char* const kReplaced = "\xEF\xBF\xBD";

// A file with byte-level decoder, and one with bytes of its own and Llama's decoder.
const char* const kByteLevel = R"({"added_tokens": [{"id": 6, "content": "<end>", "special": true, "single_word": false,
  "lstrip": false, "rstrip": false, "normalized": false}], "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}, "post_processor": null,
  "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "merges": ["Ã ©", ["a", "b"]],
  "vocab": {"Ã": 0, "©": 1, "Ã©": 2, "a": 3, "b": 4, "ab": 5}}})";

std::string pieces_file(const std::string& decoders) {
  std::string vocabulary = R"("<unk>": 0, "▁": 1, "a": 2, "▁a": 3)";
  const char* const digits = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary += std::string(", \"<0x") + digits[byte / 16] + digits[byte % 16] + ">\": " + std::to_string(4 + byte);
  }
  return R"({"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, "decoder": {"type":
    "Sequence", "decoders": [)" +
         decoders + R"(]}, "model": {"type": "BPE", "byte_fallback": true, "fuse_unk": true, "unk_token": "<unk>",
    "merges": [["▁", "a"]], "vocab": {)" +
         vocabulary + "}}}";
}
const char* const kLlama = R"({"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
  {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0})";

// Words cut into their longest tokens, and texts into their likeliest ones, behind a table without rules.
const char* const kWordPiece = R"({"normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars":
  true, "strip_accents": null, "lowercase": true}, "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type":
  "WordPiece", "prefix": "##", "cleanup": true}, "model": {"type": "WordPiece", "unk_token": "[UNK]",
  "continuing_subword_prefix": "##", "max_input_chars_per_word": 5, "vocab": {"[UNK]": 0, "a": 1, "ab": 2, "##b": 3,
  "##ba": 4, ".": 5, "##": 6, "##é": 7}}})";
const char* const kUnigram = R"({"normalizer": {"type": "Precompiled", "precompiled_charsmap":
  "FAAAAAAEAAAAAAAAAAAAAAAAAAAAAAAA"}, "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
  "split": true}, "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": true, "vocab": [["<unk>", 0], ["a", -1],
  ["aa", -1.5], ["b", -2], ["▁", -1e1], ["<0xC3>", -20], ["<0xA9>", -20], ["cc", -3]]}})";

Tokenizer parsed(const std::string& json) {
  auto tokenizer = Tokenizer::parse(json, "tokenizer.json");
  CHECK(tokenizer.ok());
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s: %s\n", tokenizer.failure().where.c_str(), tokenizer.failure().found.c_str());
    std::exit(1);
  }
  return std::move(*tokenizer);
}

void test_utf8_in_pieces() {
  // Every cut of a text gives it again, and what is broken gives one replacement for each longest part of a character.
  const std::string text = "a\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x99\x82z";
  CHECK(valid_utf8(text) == text.size());
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Utf8Stream stream;
    std::string made = stream.push(text.substr(0, cut));
    CHECK(text.compare(0, made.size(), made) == 0 && made.size() + 3 >= cut);
    made += stream.push(text.substr(cut));
    CHECK(made + stream.finish() == text);
  }
  const std::vector<std::pair<std::string, int>> broken = {
      {"\xFF", 1},         {"\xC0\xAF", 2},         {"\xE4\xBD", 1},
      {"\xF0\x9F\x99", 1}, {"\xED\xA0\x80", 3},     {"\xF4\x90\x80\x80", 4},
      {"\xE4\xBDz", 1},    {"\xF0\x9F\xE4\xBD", 2}, {"\x80\x80", 2}};
  for (const auto& [bytes, count] : broken) {
    Utf8Stream stream;
    std::string made = stream.push(bytes);
    made += stream.finish();
    int found = 0;
    for (size_t at = made.find(kReplaced); at != std::string::npos; at = made.find(kReplaced, at + 3)) {
      ++found;
    }
    CHECK(found == count);
    CHECK(valid_utf8(bytes) < bytes.size());
    CHECK(valid_utf8(made) == made.size());
  }
}

void test_characters_are_held_back_until_whole() {
  const Tokenizer tokenizer = parsed(kByteLevel);
  TextStream stream = tokenizer.stream(true);
  CHECK(*stream.push(3) == "a");
  CHECK((*stream.push(0)).empty());  // the first byte of two
  CHECK(*stream.push(1) == "\xC3\xA9");
  CHECK((*stream.push(6)).empty());  // special
  CHECK((*stream.push(0)).empty());
  CHECK(stream.finish() == kReplaced);
  CHECK(!stream.push(-1).ok());
  CHECK(*tokenizer.decode({3, 6, 4}, false) == "a<end>b");
  CHECK(*tokenizer.encode("ab<end>\xC3\xA9", Special::kAll) == (std::vector<int64_t>{5, 6, 2}));
  CHECK(*tokenizer.id("<end>") == 6 && *tokenizer.id("ab") == 5 && !tokenizer.id("c"));
}

void test_runs_of_bytes_are_held_back_until_their_end() {
  const Tokenizer tokenizer = parsed(pieces_file(kLlama));
  const auto byte = [](int value) { return int64_t{4} + value; };
  TextStream stream = tokenizer.stream(true);
  CHECK(*stream.push(3) == "a");  // the first blank goes
  CHECK((*stream.push(byte(0xC3))).empty());
  CHECK((*stream.push(byte(0xA9))).empty());
  CHECK(*stream.push(3) == "\xC3\xA9 a");
  CHECK((*stream.push(byte(0xC3))).empty());
  CHECK(stream.finish() == kReplaced);
  // A run that is no UTF-8 as a whole is none in its parts.
  CHECK(*tokenizer.decode({byte('x'), byte(0xFF), 2}, true) == std::string(kReplaced) + kReplaced + "a");
  CHECK(*tokenizer.encode("\xC3\xA9 a", Special::kNone) == (std::vector<int64_t>{byte(0xC3), byte(0xA9), 3}));
}

// Whatever a decoder is, and wherever its text is cut: the pieces are the whole.
void test_streams_give_the_whole_text() {
  const std::vector<std::string> decoders = {
      kLlama,
      R"({"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})",
      R"({"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "aa"}, "content": "b"})",
      R"({"type": "Fuse"}, {"type": "Strip", "content": "a", "start": 1, "stop": 2})",
      R"({"type": "Strip", "content": "a", "start": 3, "stop": 3})"};
  std::mt19937 random(3);
  for (const std::string& decoder : decoders) {
    const Tokenizer tokenizer = parsed(pieces_file(decoder));
    for (int i = 0; i < 200; ++i) {
      std::vector<int64_t> ids(random() % 12);
      for (int64_t& id : ids) {
        id = random() % 3 == 0 ? 4 + random() % 256 : random() % 4;
      }
      TextStream stream = tokenizer.stream(false);
      std::string made;
      for (const int64_t id : ids) {
        made += *stream.push(id);
        CHECK(valid_utf8(made) == made.size());
      }
      made += stream.finish();
      CHECK(made == *tokenizer.decode(ids, false));
    }
  }
  // What the whole text decides: two tokens "a" are one match.
  const Tokenizer fused = parsed(pieces_file(decoders[2]));
  CHECK(*fused.decode({2, 2}, false) == "b");
}

void test_words_are_cut_into_their_longest_tokens() {
  const Tokenizer tokenizer = parsed(kWordPiece);
  const auto tokens = [&](const std::string& text) { return *tokenizer.encode(text, Special::kNone); };
  CHECK(tokens("ab") == (std::vector<int64_t>{2}) && tokens("ABba") == (std::vector<int64_t>{2, 4}));
  CHECK(tokens("abc a.") == (std::vector<int64_t>{0, 1, 5}));
  CHECK(tokens("abbbb") == (std::vector<int64_t>{2, 3, 3, 3}) && tokens("abbbbb") == (std::vector<int64_t>{0}));
  // The prefix alone goes on with no word, and at a word's begin it is a text like others.
  CHECK(tokens("a##") == (std::vector<int64_t>{1, 0, 0}));
  CHECK(*tokenizer.decode({1, 3, 1, 5}, false) == "ab a.");
  CHECK(*tokenizer.decode({3, 6, 1}, false) == "##b a");
}

void test_texts_are_cut_into_their_likeliest_tokens() {
  const Tokenizer tokenizer = parsed(kUnigram);
  const auto tokens = [&](const std::string& text) { return *tokenizer.encode(text, Special::kNone); };
  CHECK(tokens("aaa").size() == 2 && tokens("aaaa") == (std::vector<int64_t>{2, 2}));
  CHECK(tokens("azzb") == (std::vector<int64_t>{1, 0, 3}));       // a run of unknown ones is one
  CHECK(tokens("a\xC3\xA9z") == (std::vector<int64_t>{1, 0}));    // some of whose bytes have no tokens
  CHECK(tokens("a\xC3\xA9") == (std::vector<int64_t>{1, 5, 6}));  // and where all have
  CHECK(tokens("cc") == (std::vector<int64_t>{7}) && tokens("c") == (std::vector<int64_t>{0}));
  CHECK(tokens("").empty());
}

void test_damaged_files_are_refused() {
  // Cut short anywhere, and with any one byte another: read or refused, never a crash.
  for (const std::string& whole :
       {std::string(kByteLevel), pieces_file(kLlama), std::string(kWordPiece), std::string(kUnigram)}) {
    for (size_t size = 0; size < whole.size(); size += 1 + size / 200) {
      CHECK(!Tokenizer::parse(std::string_view(whole).substr(0, size), "f").ok());
    }
    std::mt19937 random(7);
    for (int i = 0; i < 2000; ++i) {
      std::string damaged = whole;
      damaged[random() % damaged.size()] = "{}[]\",:0-1eanull\\ "[random() % 18];
      const auto tokenizer = Tokenizer::parse(damaged, "f");
      if (tokenizer.ok()) {
        (void)tokenizer->encode("ab \xC3\xA9<end>", Special::kAll);
        (void)tokenizer->decode({0, 1, 2, 3, 4, 200}, false);
      } else {
        CHECK(tokenizer.failure().code == ZO_BUNDLE_ERROR && !tokenizer.failure().found.empty());
      }
    }
  }
  std::string nested = R"({"model": {"type": "BPE", "vocab": )";
  nested += std::string(100000, '[');
  CHECK(!Tokenizer::parse(nested, "f").ok());
  CHECK(
      !Tokenizer::parse(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "vocab": {"b": 0}, "merges": []}})", "f").ok());
  CHECK(!Tokenizer::parse("[]", "f").ok());
  CHECK(!Tokenizer::parse(R"({"model": []})", "f").ok());
  CHECK(!Tokenizer::parse(R"({"model": {"vocab": null}})", "f").ok());
}

void test_regular_expressions_are_translated_or_refused() {
  CHECK(*translated_regex(R"(\s+(?!\S)|[^\s\p{L}]\u00e9\x41)", "r") ==
        R"(\p{White_Space}+(?!\P{White_Space})|[^\p{White_Space}\p{L}]\x{00e9}\x{41})");
  CHECK(*translated_regex(R"(\p{Han}\p{^L}\P{^N}\w\v)", "r") == R"(\p{sc:Han}\P{L}\p{N}[\p{L}\p{M}\p{Nd}\p{Pc}]\x{b})");
  for (const char* bad : {"a**",  "*a",       "a{",       "a{1",         "a{1,2,3}", "a{2000}", "a{1}?", "[",    "[]",
                          "[a",   "[[a]]",    "(?P<a>b)", "(*UTF)",      "\\",       "\\1",     "\\b",   "\\Ka", "\\p",
                          "\\p{", "\\p{Foo}", "\\u12",    "\\x{110000}", "\\xff",    "(?#c)",   "(?i)a"}) {
    CHECK(!translated_regex(bad, "r").ok());
  }
  CHECK(!Regex::compile("(", "r").ok());
  // No verb of PCRE2 and no deep nesting gets through.
  CHECK(!Regex::compile(std::string(1000, '(') + std::string(1000, ')'), "r").ok());
  const auto empty = Regex::compile("x*", "r");
  CHECK(empty.ok() && empty->find("axb")->size() == 3);  // before a, x, and behind b
}

void test_vocabulary() {
  Vocabulary vocabulary;
  CHECK(!vocabulary.find("a") && !vocabulary.text(0));
  for (uint32_t i = 0; i < 5000; ++i) {
    CHECK(vocabulary.add("token" + std::to_string(i), 2 * i));
  }
  CHECK(!vocabulary.add("token7", 1) && !vocabulary.add("other", 14) && !vocabulary.add("far", kMostTokens));
  CHECK(vocabulary.add("", 1) && vocabulary.find("") == 1u);
  CHECK(vocabulary.find("token4999") == 9998u && *vocabulary.text(9998) == "token4999" && !vocabulary.text(9999));
  CHECK(!vocabulary.find("token5000"));
}

void test_chat_templates() {
  TextSpec text;
  const auto refused = Chat::open(text);
  CHECK(!refused.ok() && refused.failure().code == ZO_BUNDLE_ERROR);
  text.chat = ChatTemplate{
      "{{ bos_token }}{{ strftime_now('%d %b %Y %j%%') }}{% for m in messages %}|{{ m.role }}:{{ m.content }}"
      "{% if m.role == 'assistant' %}{{ m.tool_calls | tojson }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}>{% endif %}",
      {{"bos_token", "<s>"}},
      {}};
  const auto chat = Chat::open(text);
  CHECK(chat.ok());
  // Noon of the second of January 1970, in any time zone but the farthest.
  const Message calls = {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {{{"z", 1}, {"a", 2.0}}}}};
  CHECK((*chat).write({message("user", "a"), calls}, {}, true, 129600)->text ==
        "<s>02 Jan 1970 002%|user:a|assistant:[{\"z\": 1, \"a\": 2.0}]>");
  const Message odd = {{"role", "user"}, {"content", "a"}, {"weight", 0}, {"name", ""}, {"tool_calls", nullptr}};
  const auto unread = (*chat).write({odd}, {}, true, 0);
  CHECK(!unread.ok() && unread.failure().where == "message 1" && unread.failure().found == "the key 'weight'");
  CHECK(!(*chat).write({message("user", "a")}, {{{"name", "f"}}}, true, 0).ok());
}

// Every way to cut a text into tokens gives the same text before a stop string, and no piece that is taken back.
void test_texts_end_before_stop_strings() {
  // Token i is the i-th of these; each is a text of "a" and "b" or an e with an acute accent.
  const Tokenizer tokenizer = parsed(kByteLevel);
  const std::vector<std::pair<std::vector<int64_t>, std::string>> texts = {
      {{3, 4, 3, 3, 4, 3, 2, 4},
       "abaaba\xC3\xA9"
       "b"},
      {{5, 3, 5, 3, 0, 1, 4},
       "abaaba\xC3\xA9"
       "b"},
  };
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{},
       "abaaba\xC3\xA9"
       "b"},
      {{"c", "abaabab"},
       "abaaba\xC3\xA9"
       "b"},  // one that only begins
      {{"aab"}, "ab"},
      {{"ba\xC3\xA9", "zzzz"}, "abaa"},
      {{"\xC3\xA9"}, "abaaba"},
      {{"b", "a"}, ""},
      {{"baaba\xC3\xA9"
        "c",
        "ba\xC3\xA9"},
       "abaa"},
      {{"abaaba\xC3\xA9"
        "b"},
       ""},
  };
  for (const auto& [tokens, whole] : texts) {
    for (const auto& [stops, expected] : cases) {
      StoppedText text(tokenizer, stops);
      std::string given;
      for (size_t i = 0; i < tokens.size() && !text.stopped(); ++i) {
        given += *text.push(tokens[i]);
        CHECK(expected.compare(0, given.size(), given) == 0 && valid_utf8(given) == given.size());
      }
      given += text.finish();
      CHECK(given == expected && text.text() == expected);
      CHECK(text.stopped() == (expected != whole));
    }
  }
  // What is certain at the end alone can end a text too.
  StoppedText broken(tokenizer, {std::string("a") + kReplaced});
  CHECK((*broken.push(4)) == "b" && (*broken.push(3)).empty() && (*broken.push(0)).empty());
  CHECK(broken.finish().empty() && broken.stopped() && broken.text() == "b");
  CHECK(!check_stops({"a", ""}).ok() && !check_stops({"\xFF"}).ok() && check_stops({"\xC3\xA9"}).ok());
}

}  // namespace

int main() {
  test_utf8_in_pieces();
  test_characters_are_held_back_until_whole();
  test_runs_of_bytes_are_held_back_until_their_end();
  test_streams_give_the_whole_text();
  test_words_are_cut_into_their_longest_tokens();
  test_texts_are_cut_into_their_likeliest_tokens();
  test_damaged_files_are_refused();
  test_regular_expressions_are_translated_or_refused();
  test_vocabulary();
  test_chat_templates();
  test_texts_end_before_stop_strings();
  return check::result();
}
