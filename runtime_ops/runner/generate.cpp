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

// Generates with the options of the command line.
struct Call {
  const Options& options;
  zo_session* session;
  const volatile std::sig_atomic_t& stop;
  json& out;
  zo_error& error;

  // What follows a prompt; `shown`: printed as it comes.
  zo_status answer(const zo_prompt& prompt, bool shown) const;
};

zo_status Call::answer(const zo_prompt& prompt, bool shown) const {
  zo_generate_options wanted = sized<zo_generate_options>();
  wanted.max_tokens = options.max_tokens;
  wanted.temperature = options.temperature;
  wanted.top_k = options.top_k;
  wanted.top_p = options.top_p;
  wanted.min_p = options.min_p;
  wanted.repetition_penalty = options.repetition_penalty;
  wanted.seed = options.seed.value_or(0);
  wanted.sliding = options.sliding ? 1 : 0;
  wanted.adapter = options.adapter.empty() ? nullptr : kAdapter;
  wanted.messages = prompt.messages;
  wanted.message_count = prompt.message_count;
  if (prompt.message_count == 0) {
    wanted.text = prompt.text;
    wanted.text_size = prompt.text_size;
  }
  std::vector<const char*> stops;
  stops.reserve(options.stops.size());
  for (const std::string& one : options.stops) {
    stops.push_back(one.c_str());
  }
  wanted.stop_strings = stops.data();
  wanted.stop_string_count = stops.size();
  wanted.on_text = on_text;
  Said said{shown, &stop, {}};
  zo_generation made = sized<zo_generation>();
  const zo_status status = zo_session_generate(session, &wanted, on_token, &said, &made, &error);
  if (status != ZO_OK) {
    return status;
  }
  if (shown) {
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

// The prompts of a file, each of which becomes a line of JSON.
struct Lines {
  const Call& call;
  bool answers;
  zo_status status;

  static int32_t pass(void* user, const zo_prompt* prompt) {
    auto* lines = static_cast<Lines*>(user);
    if (lines->answers) {
      lines->status = lines->call.answer(*prompt, false);
      if (lines->status == ZO_OK) {
        std::printf("%s\n", lines->call.out.dump().c_str());
        std::fflush(stdout);
      }
    }
    return lines->status == ZO_OK ? lines->call.stop : 1;
  }
};

}  // namespace

zo_status generate(const Options& options, zo_session* session, const volatile std::sig_atomic_t& stop, json& out,
                   zo_error& error) {
  if (!options.adapter.empty()) {
    const zo_status loaded = zo_session_load_adapter(session, kAdapter, options.adapter.c_str(), &error);
    if (loaded != ZO_OK) {
      return loaded;
    }
  }
  const Call call{options, session, stop, out, error};
  if (options.data.empty()) {
    const std::string prompt = options.prompt.value_or("");
    const zo_message message{"user", prompt.c_str()};
    return options.chat ? call.answer({sizeof(zo_prompt), nullptr, 0, &message, 1}, !options.json)
                        : call.answer({sizeof(zo_prompt), prompt.c_str(), prompt.size(), nullptr, 0}, !options.json);
  }
  // All lines are read first: a bad one is said before minutes of text.
  zo_error failed = {};
  Lines lines{call, false, ZO_OK};
  zo_status status = zo_prompts_read(options.data.c_str(), Lines::pass, &lines, &failed);
  if (status == ZO_OK) {
    lines.answers = true;
    status = zo_prompts_read(options.data.c_str(), Lines::pass, &lines, &failed);
  }
  if (lines.status != ZO_OK) {
    return lines.status;  // of a prompt, whose message is in `error`
  }
  if (status != ZO_OK) {
    error = failed;
  }
  return status;
}

}  // namespace zoexport::runner
