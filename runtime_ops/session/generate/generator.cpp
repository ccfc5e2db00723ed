#include "session/generate/generator.h"

#include <algorithm>
#include <chrono>

namespace zoexport {
namespace {

using Clock = std::chrono::steady_clock;

// Truncate a long prompt to its last tokens, with room for the new tokens, at most half a context.
std::vector<int64_t> last_part(const std::vector<int64_t>& prompt, uint32_t max_new_tokens, uint32_t context) {
  const size_t most = prompt.size() < context ? context : context - std::min(max_new_tokens, context / 2);
  const size_t dropped = prompt.size() - std::min(prompt.size(), std::max<size_t>(most, 1));
  return {prompt.begin() + static_cast<std::ptrdiff_t>(dropped), prompt.end()};
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

Status check_options(const Manifest& manifest, const GenerateOptions& options) {
  if (options.prompt.empty()) {
    return Failure{ZO_INVALID_ARGUMENT, "prompt", "no tokens", "at least one", "Pass a prompt."};
  }
  if (options.max_new_tokens == 0) {
    return Failure{ZO_INVALID_ARGUMENT, "max_new_tokens", "0", "at least 1", "Pass how many tokens may follow."};
  }
  const uint32_t context = manifest.generate->context;
  if (options.prompt.size() >= context && !options.sliding) {
    return Failure{ZO_INVALID_ARGUMENT, "prompt", std::to_string(options.prompt.size()) + " tokens",
                   "fewer than generate.context = " + std::to_string(context),
                   "Shorten it, read its last part alone (sliding), or compile the bundle with a larger "
                   "generate.context."};
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
  const uint32_t context = manifest.generate->context;
  const std::vector<int64_t> prompt = last_part(options.prompt, options.max_new_tokens, context);
  // The last token is read in any case, for what follows it.
  const auto [different, same] =
      std::mismatch(prompt.begin(), prompt.end() - 1, decoder.fed().begin(), decoder.fed().end());
  decoder.go_back(static_cast<size_t>(different - prompt.begin()));
  const size_t kept = decoder.fed().size();
  result.kept = kept;
  ZO_TRY(decoder.feed(prompt.data() + kept, prompt.size() - kept, seed, state));
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
    if (result.tokens >= options.max_new_tokens || (decoder.room() == 0 && !options.sliding)) {
      break;
    }
    sampler.see(token);
    std::vector<int64_t> next = {token};
    if (decoder.room() == 0) {
      // Keys hold the positions of their tokens, so that the last ones are read again from position 0 on.
      next.insert(next.begin(), decoder.fed().end() - context / 2, decoder.fed().end());
      decoder.go_back(0);
    }
    ZO_TRY(decoder.feed(next.data(), next.size(), seed, state));
  }
  result.decode_seconds = seconds_since(second);
  return result;
}

}  // namespace zoexport
