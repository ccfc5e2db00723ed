// Text as tokens: a prompt is read, and one token after another follows.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "session/generate/decoder.h"
#include "session/generate/sampling.h"

namespace zoexport {

// Why no token follows: a stop token, the largest number of tokens or the context, the callback, or a stop string.
enum { ZO_STOP_TOKEN = 0, ZO_STOP_LENGTH = 1, ZO_STOP_CALLER = 2, ZO_STOP_STRING = 3 };

struct GenerateOptions {
  std::vector<int64_t> prompt;
  uint32_t max_new_tokens = 0;
  // After which nothing follows; they are not given to the caller. None: the bundle's.
  std::optional<std::vector<int64_t>> stop_tokens;
  SamplingOptions sampling;
  bool sliding = false;  // past the context, go on over the last part of the tokens
};

struct Generation {
  uint64_t tokens = 0;  // that were given to the caller
  uint64_t kept = 0;    // of the prompt, that the decoder had read before
  int32_t stop = ZO_STOP_LENGTH;
  double prefill_seconds = 0;
  double decode_seconds = 0;  // from the second token on: the first comes with the prompt
};

// Callback for a token; returns whether to continue.
using OnToken = std::function<bool(int64_t token)>;

// Refuses a prompt or options that no session could take.
Status check_options(const Manifest& manifest, const GenerateOptions& options);

// Read the prompt and generate. A part of the prompt that the decoder has already read with the same values is reused.
// `seed` is the run's.
Result<Generation> generate(const Manifest& manifest, Decoder& decoder, const GenerateOptions& options, uint64_t seed,
                            const StateValues& state, const OnToken& on_token);

}  // namespace zoexport
