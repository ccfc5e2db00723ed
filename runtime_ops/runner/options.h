// The runner's command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "session/result.h"

namespace zoexport::runner {

struct Options {
  std::string verb;  // one of those that kUsage has
  std::string bundle;
  std::string examples;  // tokenized
  std::string data;      // as people write them
  std::string state;
  uint64_t steps = 0;
  uint32_t threads = 0;
  bool skip_hashes = false;
  bool recover = false;
  bool change_settings = false;
  bool json = false;
  bool last = false;  // of a state that is read: the last step's values, also where the run keeps its best
  // What train evaluates on meanwhile: tokenized, or as people write them.
  std::string eval_examples;
  std::string eval_data;
  uint32_t eval_every = 0;
  uint32_t patience = 0;
  int32_t keep = ZO_KEEP_DEFAULT;
  std::optional<std::string> cache;  // empty: none; not given: the session's own rule
  bool timings = false;
  std::string engine;                  // empty: the bundle's own
  std::optional<std::string> trusted;  // public keys, as zo_open_options takes them
  // What is not given comes from the manifest.
  std::optional<double> lr;
  std::optional<double> eps;
  std::optional<uint64_t> seed;
  std::optional<uint32_t> batch;
  std::optional<uint32_t> accumulate;
  std::optional<double> momentum;
  std::optional<double> weight_decay;
  std::optional<double> clip;
  std::optional<uint32_t> checkpoint_every;
  std::optional<uint32_t> keep_mb;
  std::optional<uint32_t> cache_prefix_mb;
  std::optional<int32_t> schedule;
  std::optional<uint32_t> warmup;
  std::optional<int32_t> loss;
  std::optional<double> dpo_beta;
  std::optional<double> orpo_beta;
  std::optional<int32_t> choices;
  std::optional<int32_t> pack;
  std::optional<int32_t> difference;
  // Of generate.
  std::optional<std::string> prompt;
  std::string adapter;
  std::vector<std::string> stops;
  uint32_t max_tokens = 128;
  uint32_t top_k = 0;
  double temperature = 0;
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  bool chat = false;  // the prompt is a user's message
  bool sliding = false;

  // Of export.
  std::string output;
  int32_t format = ZO_ADAPTER_PEFT;
  int32_t outtype = ZO_OUTTYPE_F32;
  bool force = false;  // of unpack too

  std::string file;  // of unpack

  bool takes_examples() const { return verb == "train" || verb == "eval"; }
  bool validates() const { return !eval_examples.empty() || !eval_data.empty(); }
};

extern const char* const kUsage;

// Problems are ZO_INVALID_ARGUMENT.
Result<Options> parse_options(int count, const char* const* arguments);

}  // namespace zoexport::runner
