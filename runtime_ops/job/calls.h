// Verbs of the C ABI, as C++ hosts call them: handles that free themselves, failures as values, results as JSON.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "session/result.h"
#include "zoexport/session.h"

namespace zoexport {

struct CloseSession {
  void operator()(zo_session* session) const { zo_session_close(session); }
};
struct CloseTokenizer {
  void operator()(zo_tokenizer* tokenizer) const { zo_tokenizer_close(tokenizer); }
};
struct FreeDataset {
  void operator()(zo_dataset* dataset) const { zo_dataset_free(dataset); }
};
using SessionHandle = std::unique_ptr<zo_session, CloseSession>;
using TokenizerHandle = std::unique_ptr<zo_tokenizer, CloseTokenizer>;
using DatasetHandle = std::unique_ptr<zo_dataset, FreeDataset>;

// Calls a verb.
template <typename Verb, typename... Arguments>
Status call(Verb verb, Arguments... arguments) {
  zo_error error;
  const zo_status status = verb(arguments..., &error);
  return status == ZO_OK ? Status() : Status(Failure{status, error.where, error.found, error.expected, error.fix});
}

// Calls a verb whose last argument gives JSON.
template <typename Verb, typename... Arguments>
Result<nlohmann::json> json_of(Verb verb, Arguments... arguments) {
  char* text = nullptr;
  ZO_TRY(call(verb, arguments..., &text));
  const std::unique_ptr<char, decltype(&zo_free)> held(text, zo_free);
  return nlohmann::json::parse(text);
}

// Opens a session or a tokenizer of a bundle.
inline Result<SessionHandle> open_session(const std::string& bundle, const nlohmann::json& options,
                                          const zo_engine* engine = nullptr) {
  zo_session* session = nullptr;
  ZO_TRY(call(zo_session_open, bundle.c_str(), options.dump().c_str(), engine, &session));
  return SessionHandle(session);
}
inline Result<TokenizerHandle> open_tokenizer(const std::string& bundle, const nlohmann::json& options) {
  nlohmann::json own = nlohmann::json::object();
  for (const char* const key : {"verify", "trusted_keys"}) {  // what opening a session and a tokenizer share
    if (options.contains(key)) {
      own[key] = options[key];
    }
  }
  zo_tokenizer* tokenizer = nullptr;
  ZO_TRY(call(zo_tokenizer_open, bundle.c_str(), own.dump().c_str(), &tokenizer));
  return TokenizerHandle(tokenizer);
}

// The settings of a session's run that the reading of data depends on.
inline Result<nlohmann::json> reading_of(zo_session* session) {
  ZO_ASSIGN(settings, json_of(zo_session_settings, session));
  nlohmann::json reading = nlohmann::json::object();
  for (const char* const key : {"loss", "pack", "append_eos", "mask_history"}) {
    if (settings.contains(key)) {
      reading[key] = settings[key];
    }
  }
  return reading;
}

// The digest of examples; an empty one of none (null).
inline Result<std::string> digest_of(const zo_dataset* examples) {
  char digest[65] = {};
  if (examples != nullptr) {
    ZO_TRY(call(zo_dataset_digest, examples, static_cast<char*>(digest)));
  }
  return std::string(static_cast<const char*>(digest));
}

}  // namespace zoexport
