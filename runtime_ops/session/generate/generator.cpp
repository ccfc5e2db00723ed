#include "session/generate/generator.h"

#include <algorithm>
#include <chrono>

namespace zoexport {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

Status check_options(const Manifest& manifest, const GenerateOptions& options) {
  if (options.prompt.empty()) {
    return Failure{ZO_INVALID_ARGUMENT, "prompt", "no tokens", "at least one", "Pass a prompt."};
  }
  if (options.max_tokens == 0) {
    return Failure{ZO_INVALID_ARGUMENT, "max_tokens", "0", "at least 1", "Pass how many tokens may follow."};
  }
  const uint32_t context = manifest.generate->context;
  if (options.prompt.size() >= context) {
    return Failure{ZO_INVALID_ARGUMENT, "prompt", std::to_string(options.prompt.size()) + " tokens",
                   "fewer than generate.context = " + std::to_string(context),
                   "Shorten it, or compile the bundle with a larger generate.context."};
  }
  for (int64_t token : options.prompt) {
    if (token < 0 || (manifest.vocab_size > 0 && token >= manifest.vocab_size)) {
      return Failure{ZO_INVALID_ARGUMENT, "prompt", "token " + std::to_string(token),
                     "tokens below vocab_size = " + std::to_string(manifest.vocab_size),
                     "Tokenize the prompt for this bundle."};
    }
  }
  return check_sampling(options.sampling);
}

Result<Generation> generate(const Manifest& manifest, Decoder& decoder, const GenerateOptions& options, uint64_t seed,
                            const StateValues& state, const OnToken& on_token) {
  Generation result;
  const std::vector<int64_t>& stops = options.stop_tokens ? *options.stop_tokens : manifest.generate->stop_tokens;
  const auto start = Clock::now();
  ZO_TRY(decoder.feed(options.prompt.data(), options.prompt.size(), seed, state));
  result.prefill_seconds = seconds_since(start);
  const size_t known = decoder.logits().size();
  const auto vocabulary = static_cast<size_t>(manifest.vocab_size);
  Sampler sampler(options.sampling, vocabulary > 0 ? std::min(known, vocabulary) : known);
  for (int64_t token : options.prompt) {
    sampler.see(token);
  }
  const auto second = Clock::now();
  while (true) {
    const int64_t token = sampler.choose(decoder.logits().data(), static_cast<uint32_t>(result.tokens));
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      result.stop = ZO_STOP_TOKEN;
      break;
    }
    ++result.tokens;
    if (!on_token(token)) {
      result.stop = ZO_STOP_CALLER;
      break;
    }
    if (result.tokens >= options.max_tokens || decoder.room() == 0) {
      break;
    }
    sampler.see(token);
    ZO_TRY(decoder.feed(&token, 1, seed, state));
  }
  result.decode_seconds = seconds_since(second);
  return result;
}

}  // namespace zoexport
