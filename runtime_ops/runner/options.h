// The runner's command line.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "session/result.h"

namespace zoexport::runner {

struct Options {
  std::string verb;  // one of those in kUsage
  std::string bundle;
  std::string examples;  // tokenized
  std::string data;      // a data file
  std::string state;
  std::string eval_examples;  // validation examples of train, tokenized
  std::string eval_data;      // or a data file
  std::string output;         // of export
  std::string file;           // of unpack
  std::string adapter;        // of generate
  std::optional<std::string> prompt;
  std::optional<uint64_t> seed;  // of a new state, or of the sampling
  bool chat = false;             // the prompt is a user's message
  bool json = false;
  bool timings = false;

  // Options of the session's calls, by the kinds of the table; `settings` are those of the run.
  nlohmann::json open = nlohmann::json::object();
  nlohmann::json attach = nlohmann::json::object();
  nlohmann::json settings = nlohmann::json::object();
  nlohmann::json train = nlohmann::json::object();
  nlohmann::json generate = nlohmann::json::object();
  nlohmann::json write = nlohmann::json::object();  // of export; unpack takes `replace`

  bool takes_examples() const { return verb == "train" || verb == "eval"; }
  bool validates() const { return !eval_examples.empty() || !eval_data.empty(); }
};

extern const char* const kUsage;

// Problems are ZO_INVALID_ARGUMENT.
Result<Options> parse_options(int count, const char* const* arguments);

}  // namespace zoexport::runner
