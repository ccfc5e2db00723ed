// Text as tokens: a prompt is read, and one token after another follows.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "session/generate/decoder.h"
#include "session/generate/sampling.h"

namespace zoexport {

struct GenerateOptions {
  std::vector<int64_t> prompt;
  uint32_t max_tokens = 0;
  // After which nothing follows; they are not given to the caller. None: the bundle's.
  std::optional<std::vector<int64_t>> stop_tokens;
  SamplingOptions sampling;
};

struct Generation {
  uint64_t tokens = 0;  // that were given to the caller
  int32_t stop = ZO_STOP_LENGTH;
  double prefill_seconds = 0;
  double decode_seconds = 0;  // from the second token on: the first comes with the prompt
};

// Whether to go on after a token.
using OnToken = std::function<bool(int64_t token)>;

// Refuses a prompt or options that no session could take.
Status check_options(const Manifest& manifest, const GenerateOptions& options);

// Reads the prompt and generates, on a decoder that nothing was fed to. `seed` is the run's.
Result<Generation> generate(const Manifest& manifest, Decoder& decoder, const GenerateOptions& options, uint64_t seed,
                            const StateValues& state, const OnToken& on_token);

}  // namespace zoexport
