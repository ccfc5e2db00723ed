// The C ABI's verbs that generate.
#include <cstddef>

#include "bindings/c_session.h"
#include "zoexport/session.h"

using namespace zoexport::c;
using zoexport::Status;

namespace {

// The first structs of this ABI version ended before these fields.
constexpr size_t kFirstOptions = offsetof(zo_generate_options, text);
constexpr size_t kFirstGeneration = offsetof(zo_generation, text);

Status read_options(const zo_generate_options& given, zoexport::GenerateOptions& chosen) {
  if (given.prompt_length > 0) {
    ZO_REQUIRE(given.prompt);
    chosen.prompt.assign(given.prompt, given.prompt + given.prompt_length);
  }
  if (given.stop_tokens != nullptr) {
    chosen.stop_tokens.emplace(given.stop_tokens, given.stop_tokens + given.stop_count);
  }
  chosen.max_tokens = given.max_tokens;
  chosen.sampling = {given.temperature,
                     given.top_k,
                     given.top_p == 0 ? 1 : given.top_p,
                     given.min_p,
                     given.repetition_penalty == 0 ? 1 : given.repetition_penalty,
                     given.seed};
  chosen.sliding = given.sliding != 0;
  return {};
}

Status read_text(const zo_generate_options& given, zoexport::GenerateRequest& request) {
  if (given.text != nullptr) {
    request.text.emplace(given.text, given.text_size);
  }
  if (given.message_count > 0) {
    ZO_REQUIRE(given.messages);
  }
  for (size_t i = 0; i < given.message_count; ++i) {
    ZO_REQUIRE(given.messages[i].role);
    ZO_REQUIRE(given.messages[i].content);
    request.messages.push_back({given.messages[i].role, given.messages[i].content});
  }
  if (given.stop_string_count > 0) {
    ZO_REQUIRE(given.stop_strings);
  }
  for (size_t i = 0; i < given.stop_string_count; ++i) {
    ZO_REQUIRE(given.stop_strings[i]);
    request.stop_strings.emplace_back(given.stop_strings[i]);
  }
  if (given.adapter != nullptr) {
    request.adapter = given.adapter;
  }
  request.untrained = given.untrained != 0;
  request.keep = given.keep != 0;
  return {};
}

}  // namespace

zo_status zo_session_generate(zo_session* session, const zo_generate_options* options, zo_on_token on_token, void* user,
                              zo_generation* generation, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(options);
    ZO_REQUIRE(generation);
    zo_generate_options given;
    ZO_TRY(read_struct(*options, kFirstOptions, "zo_generate_options", given));
    zoexport::GenerateRequest request;
    ZO_TRY(read_options(given, request.options));
    ZO_TRY(read_text(given, request));
    session->cancelled = false;
    request.on_token = [&](int64_t token) {
      const bool stop = on_token != nullptr && on_token(user, token) != 0;
      return !stop && !session->cancelled;
    };
    if (given.on_text != nullptr) {
      request.on_text = [&](const std::string& piece) {
        return given.on_text(user, piece.data(), piece.size()) == 0 && !session->cancelled;
      };
    }
    ZO_ASSIGN(made, impl.generate(std::move(request)));
    session->text = std::move(made.text);
    zo_generation found = {};
    found.stop = made.made.stop;
    found.prompt_tokens = made.prompt_tokens;
    found.tokens = made.made.tokens;
    found.prefill_seconds = made.made.prefill_seconds;
    found.decode_seconds = made.made.decode_seconds;
    found.anonymous_bytes = made.anonymous_bytes;
    if (session->text) {
      found.text = session->text->data();
      found.text_size = session->text->size();
    }
    found.kept_tokens = made.made.kept;
    return write_struct(found, kFirstGeneration, "zo_generation", generation);
  });
}

zo_status zo_session_forget(zo_session* session, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    impl.forget();
    return {};
  });
}
