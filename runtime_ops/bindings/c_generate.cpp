// The C ABI's verbs that generate.
#include "bindings/c_session.h"

using namespace zoexport::c;
using nlohmann::json;
using zoexport::Options;
using zoexport::Result;
using zoexport::Status;

namespace {

constexpr const char* kStops[] = {"eos", "length", "caller", "string"};  // in the order of ZO_STOP_*

Result<zoexport::GenerateRequest> read_request(const Options& given) {
  zoexport::GenerateRequest request;
  zoexport::GenerateOptions& chosen = request.options;
  if (given.has("tokens")) {
    chosen.prompt = given.value("tokens").get<std::vector<int64_t>>();
  }
  if (given.has("stop_tokens")) {
    chosen.stop_tokens = given.value("stop_tokens").get<std::vector<int64_t>>();
  }
  chosen.max_new_tokens = given.count("max_new_tokens");
  chosen.sampling = {
      given.number("temperature"),        given.count("top_k"), given.number("top_p"), given.number("min_p"),
      given.number("repetition_penalty"), given.whole("seed")};
  chosen.sliding = given.flag("sliding");
  if (given.has("prompt")) {
    request.text = given.text("prompt");
  }
  ZO_ASSIGN(messages, read_messages(given));
  request.messages = std::move(messages);
  request.tools = given.in_order("tools");
  if (given.has("stop")) {
    request.stop_strings = given.value("stop").get<std::vector<std::string>>();
  }
  if (given.has("adapter")) {
    request.adapter = given.text("adapter");
  }
  request.untrained = given.flag("untrained");
  request.keep = given.flag("keep");
  return request;
}

}  // namespace

zo_status zo_session_generate(zo_session* session, const char* options, zo_on_token on_token, zo_on_text on_text,
                              void* user, char** generation, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(generation);
    ZO_ASSIGN(given, Options::parse("generate", options));
    ZO_ASSIGN(request, read_request(given));
    session->cancelled = false;
    request.on_token = [&](int64_t token) {
      const bool stop = on_token != nullptr && on_token(user, token) != 0;
      return !stop && !session->cancelled;
    };
    if (on_text != nullptr) {
      request.on_text = [&](const std::string& piece) {
        return on_text(user, piece.data(), piece.size()) == 0 && !session->cancelled;
      };
    }
    ZO_ASSIGN(made, impl.generate(std::move(request)));
    return give({{"text", made.text ? json(*made.text) : json()},
                 {"stop", kStops[made.made.stop]},
                 {"prompt_tokens", made.prompt_tokens},
                 {"tokens", made.made.tokens},
                 {"kept_tokens", made.made.kept},
                 {"prefill_seconds", made.made.prefill_seconds},
                 {"decode_seconds", made.made.decode_seconds},
                 {"anonymous_bytes", made.anonymous_bytes}},
                generation);
  });
}

zo_status zo_session_forget(zo_session* session, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    impl.forget();
    return {};
  });
}
