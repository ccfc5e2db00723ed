#include "runner/generate.h"

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "job/calls.h"

namespace zoexport::runner {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

const char* const kAdapter = "adapter";
constexpr double kBytesOfTenthMegabyte = 1e5;

struct Said {
  bool shown;
  const volatile std::sig_atomic_t* stop;
  std::vector<int64_t> tokens;
};

int32_t on_token(void* user, int64_t token) {
  auto* said = static_cast<Said*>(user);
  said->tokens.push_back(token);
  return *said->stop;
}

int32_t on_text(void* user, const char* text, size_t size) {
  const auto* said = static_cast<const Said*>(user);
  if (said->shown) {
    std::fwrite(text, 1, size, stdout);
    std::fflush(stdout);
  }
  return *said->stop;
}

// Tokens per second, to two places; null if none were counted.
json rate(double count, double seconds) {
  return count > 0 && seconds > 0 ? json(std::round(count / seconds * 100) / 100) : json();
}

// Generates with the options of the command line.
struct Call {
  const Options& options;
  zo_session* session;
  const volatile std::sig_atomic_t& stop;

  // Continues a prompt or a conversation; `shown`: prints it as it comes.
  Result<json> answer(const ordered_json& prompt, bool shown) const {
    ordered_json wanted(options.generate);
    wanted.update(prompt);
    if (options.seed) {
      wanted["seed"] = *options.seed;
    }
    if (!options.adapter.empty()) {
      wanted["adapter"] = kAdapter;
    }
    Said said{shown, &stop, {}};
    ZO_ASSIGN(made, json_of(zo_session_generate, session, wanted.dump().c_str(), on_token, on_text,
                            static_cast<void*>(&said)));
    if (shown) {
      std::printf("\n");
    }
    const double anonymous = made["anonymous_bytes"], prompt_tokens = made["prompt_tokens"];
    return json{
        {"text", made["text"]},
        {"tokens", said.tokens},
        {"prompt_tokens", made["prompt_tokens"]},
        {"stop", made["stop"]},
        {"prefill_tokens_per_second", rate(prompt_tokens, made["prefill_seconds"])},
        {"decode_tokens_per_second", rate(static_cast<double>(said.tokens.size()) - 1, made["decode_seconds"])},
        {"peak_anonymous_mb", anonymous == 0 ? json() : json(std::round(anonymous / kBytesOfTenthMegabyte) / 10)}};
  }
};

// The prompts of a file.
struct Lines {
  const volatile std::sig_atomic_t& stop;
  std::vector<ordered_json> prompts;

  static int32_t add(void* user, const char* prompt) {
    auto* lines = static_cast<Lines*>(user);
    ordered_json line = ordered_json::parse(prompt);
    line.erase("where");
    line.erase("answers");
    lines->prompts.push_back(std::move(line));
    return lines->stop;
  }
};

}  // namespace

Result<json> generate(const Options& options, zo_session* session, const volatile std::sig_atomic_t& stop) {
  if (!options.adapter.empty()) {
    ZO_TRY(call(zo_session_load_adapter, session, kAdapter, options.adapter.c_str()));
  }
  const Call call{options, session, stop};
  if (options.data.empty()) {
    const std::string prompt = options.prompt.value_or("");
    return options.chat ? call.answer({{"messages", ordered_json::array({{{"role", "user"}, {"content", prompt}}})}},
                                      !options.json)
                        : call.answer({{"prompt", prompt}}, !options.json);
  }
  Lines lines{stop, {}};  // all are read first: a bad line fails before minutes of text
  ZO_TRY(zoexport::call(zo_prompts_read, options.data.c_str(), Lines::add, static_cast<void*>(&lines)));
  json last;
  for (const ordered_json& prompt : lines.prompts) {
    ZO_ASSIGN(made, call.answer(prompt, false));
    std::printf("%s\n", made.dump().c_str());
    std::fflush(stdout);
    last = std::move(made);
    if (stop != 0) {
      return Failure{ZO_CANCELLED, options.data, "a request to stop", "all prompts to be continued", "Run it again."};
    }
  }
  return last;
}

}  // namespace zoexport::runner
