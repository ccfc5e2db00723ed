// Helpers of all verbs of the C ABI: errors, JSON results, and options that several verbs share.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "session/chat/chat.h"
#include "session/manifest/signature.h"
#include "session/options.h"
#include "session/result.h"
#include "zoexport/session.h"

namespace zoexport::c {

// Cuts at a character's boundary, so that the text stays UTF-8.
template <size_t N>
void copy_text(char (&target)[N], const std::string& text) {
  size_t length = text.size() < N ? text.size() : N - 1;
  while (length < text.size() && length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) {
    --length;
  }
  std::memcpy(target, text.data(), length);
  target[length] = '\0';
}

inline zo_status report(const Failure& failure, zo_error* error) {
  if (error != nullptr) {
    error->code = failure.code;
    copy_text(error->where, failure.where);
    copy_text(error->found, failure.found);
    copy_text(error->expected, failure.expected);
    copy_text(error->fix, failure.fix);
  }
  return failure.code;
}

// Runs a verb's body, which returns a Status, and turns a failure or an exception into a zo_status.
template <typename Body>
zo_status guarded(zo_error* error, Body body) noexcept {
  if (error != nullptr) {
    std::memset(error, 0, sizeof(*error));
  }
  try {
    const Status status = body();
    return status.ok() ? ZO_OK : report(status.failure(), error);
  } catch (const std::bad_alloc&) {
    return report({ZO_INTERNAL_ERROR, "zoexport", "no memory left", "enough for the bundle", "Close other programs."},
                  error);
  } catch (const std::exception& exception) {
    return report({ZO_INTERNAL_ERROR, "zoexport", exception.what(), "no exception", "Report this as a defect."}, error);
  } catch (...) {
    return report({ZO_INTERNAL_ERROR, "zoexport", "an unknown exception", "none", "Report this as a defect."}, error);
  }
}

inline Failure null_argument(const char* name) {
  return {ZO_INVALID_ARGUMENT, name, "a null pointer", "a value", "Pass one."};
}

#define ZO_REQUIRE(pointer)         \
  if ((pointer) == nullptr) {       \
    return null_argument(#pointer); \
  }

// Gives a text, which the caller frees with zo_free.
inline Status give_text(const std::string& text, char** target) {
  auto* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) {
    throw std::bad_alloc();
  }
  std::memcpy(copy, text.c_str(), text.size() + 1);
  *target = copy;
  return {};
}

// JSON as hosts get it.
template <typename Json>
std::string encoded(const Json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Gives a JSON result.
template <typename Json = nlohmann::json>
Status give(const Json& result, char** target) {
  return give_text(encoded(result), target);
}

// Gives a JSON result to a callback; whether it asked to stop.
template <typename Json>
bool stops(zo_on_json callback, void* user, const Json& value) {
  return callback != nullptr && callback(user, encoded(value).c_str()) != 0;
}

// A path that a message can name.
inline Status check_path(const char* path, const char* name) {
  if (path == nullptr) {
    return null_argument(name);
  }
  return path[0] != '\0' ? Status()
                         : Status(Failure{ZO_INVALID_ARGUMENT, name, "an empty text", "a path", "Pass one."});
}

// The keys of the option `trusted_keys`; none if it is absent.
inline Result<std::optional<TrustedKeys>> trusted_keys(const Options& options) {
  std::optional<TrustedKeys> keys;
  if (options.has("trusted_keys")) {
    std::string lines;
    for (const nlohmann::json& key : options.value("trusted_keys")) {
      lines += key.get<std::string>() + "\n";
    }
    ZO_ASSIGN(parsed, parse_keys(lines));
    keys = std::move(parsed);
  }
  return keys;
}

// The conversation in a call's options.
inline Result<std::vector<Message>> read_messages(const Options& given) {
  const Message list = given.in_order("messages");
  std::vector<Message> messages;
  for (const Message& one : list) {
    if (!one.is_object() || !one.contains("role") || !one["role"].is_string()) {
      return Failure{ZO_INVALID_ARGUMENT, "message " + std::to_string(messages.size() + 1), "no text as role",
                     "a role, and the content of most", "Correct the message."};
    }
    messages.push_back(one);
  }
  return messages;
}

// A host's zo_on_part as a GoOn, called as often as the header says, and at the end.
class Parts {
 public:
  Parts(zo_on_part on_part, void* user) : on_part_(on_part), user_(user) {}

  bool operator()(uint64_t done, uint64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (on_part_ == nullptr || (done < total && now < next_)) {
      return true;
    }
    next_ = now + std::chrono::milliseconds(50);
    return on_part_(user_, done, total) == 0;
  }

 private:
  zo_on_part on_part_;
  void* user_;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace zoexport::c
