#include "runner/generate.h"

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "bindings/handles.h"

namespace zoexport::runner {
namespace {

using nlohmann::json;

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

// Tokens a second, to two places; nothing where none were counted.
json rate(double count, double seconds) {
  return count > 0 && seconds > 0 ? json(std::round(count / seconds * 100) / 100) : json();
}

const char* stop_text(int32_t stop) {
  return stop == ZO_STOP_TOKEN    ? "eos"
         : stop == ZO_STOP_STRING ? "string"
         : stop == ZO_STOP_CALLER ? "caller"
                                  : "length";
}

}  // namespace

zo_status generate(const Options& options, zo_session* session, const volatile std::sig_atomic_t& stop, json& out,
                   zo_error& error) {
  zo_generate_options wanted = sized<zo_generate_options>();
  wanted.max_tokens = options.max_tokens;
  wanted.temperature = options.temperature;
  wanted.top_k = options.top_k;
  wanted.top_p = options.top_p;
  wanted.min_p = options.min_p;
  wanted.repetition_penalty = options.repetition_penalty;
  wanted.seed = options.seed.value_or(0);
  wanted.sliding = options.sliding ? 1 : 0;
  const std::string prompt = options.prompt.value_or("");
  const zo_message message{"user", prompt.c_str()};
  if (options.chat) {
    wanted.messages = &message;
    wanted.message_count = 1;
  } else {
    wanted.text = prompt.c_str();
    wanted.text_size = prompt.size();
  }
  std::vector<const char*> stops;
  stops.reserve(options.stops.size());
  for (const std::string& one : options.stops) {
    stops.push_back(one.c_str());
  }
  wanted.stop_strings = stops.data();
  wanted.stop_string_count = stops.size();
  wanted.on_text = on_text;
  if (!options.adapter.empty()) {
    const zo_status loaded = zo_session_load_adapter(session, kAdapter, options.adapter.c_str(), &error);
    if (loaded != ZO_OK) {
      return loaded;
    }
    wanted.adapter = kAdapter;
  }
  Said said{!options.json, &stop, {}};
  zo_generation made = sized<zo_generation>();
  const zo_status status = zo_session_generate(session, &wanted, on_token, &said, &made, &error);
  if (status != ZO_OK) {
    return status;
  }
  if (said.shown) {
    std::printf("\n");
  }
  const double anonymous = std::round(static_cast<double>(made.anonymous_bytes) / kBytesOfTenthMegabyte) / 10;
  out = {{"text", std::string(made.text, made.text_size)},
         {"tokens", said.tokens},
         {"prompt_tokens", made.prompt_tokens},
         {"stop", stop_text(made.stop)},
         {"prefill_tokens_per_second", rate(static_cast<double>(made.prompt_tokens), made.prefill_seconds)},
         {"decode_tokens_per_second", rate(static_cast<double>(said.tokens.size()) - 1, made.decode_seconds)},
         {"peak_anonymous_mb", made.anonymous_bytes == 0 ? json() : json(anonymous)}};
  return ZO_OK;
}

}  // namespace zoexport::runner
