// A tokenizer.json, read without building a JSON value of each of its tokens and merges: they are most of it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "session/result.h"
#include "session/text/bpe.h"
#include "session/text/vocabulary.h"

namespace zoexport {

struct TokenizerFile {
  nlohmann::json root;  // all but model.vocab and model.merges
  Vocabulary vocabulary;
  std::vector<double> scores;         // of the tokens, by number, where the vocabulary is a list of both (Unigram)
  std::vector<Merges::Merge> merges;  // of BPE
};

// `where` names the file. A model of an unknown type may have no vocabulary here.
Result<TokenizerFile> parse_tokenizer_file(std::string_view text, const std::string& where);

// Remedy for problems of a tokenizer.json.
inline constexpr char kOtherTokenizer[] = "Use a model whose tokenizer has these kinds, or tokenize in Python.";

}  // namespace zoexport
