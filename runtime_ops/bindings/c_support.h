// What the verbs of the C ABI share: errors, and structs that callers of other releases pass.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string>

#include "session/manifest/signature.h"
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

// Runs a verb's body, which returns a Status, and turns whatever it ends in into a zo_status.
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

inline Failure beyond_evaluations(uint32_t index, size_t count) {
  return {ZO_INVALID_ARGUMENT, "index", std::to_string(index), "below " + std::to_string(count),
          "Stop at the last evaluation."};
}

// A path that a message can name.
inline Status check_path(const char* path, const char* name) {
  if (path == nullptr) {
    return null_argument(name);
  }
  return path[0] != '\0' ? Status()
                         : Status(Failure{ZO_INVALID_ARGUMENT, name, "an empty text", "a path", "Pass one."});
}

// The keys of a caller's `trusted_keys`; none where it is null.
inline Status read_keys(const char* text, std::optional<TrustedKeys>& keys) {
  keys.reset();
  if (text != nullptr) {
    ZO_ASSIGN(parsed, parse_keys(text));
    keys = std::move(parsed);
  }
  return {};
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

// Larger than any struct of a release to come.
inline constexpr size_t kLargestStruct = 4096;

inline Failure bad_size(uint32_t given, size_t known, const char* name) {
  return {ZO_INVALID_ARGUMENT, std::string(name) + ".struct_size", std::to_string(given), std::to_string(known),
          "Set it to sizeof; build the host against this library's header."};
}

// Copies a caller's struct. `least` is the size of the first one that this ABI version had.
template <typename T>
Status read_struct(const T& given, size_t least, const char* name, T& known) {
  const size_t size = given.struct_size;
  if (size < least || size > kLargestStruct) {
    return bad_size(given.struct_size, sizeof(T), name);
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(&given);
  if (size > sizeof(T) && std::any_of(bytes + sizeof(T), bytes + size, [](unsigned char byte) { return byte != 0; })) {
    return Failure{ZO_INVALID_ARGUMENT, name, "a field that this library does not know",
                   "only those of ABI version " + std::to_string(ZO_ABI_VERSION) + " with another value than zero",
                   "Use a newer library, or leave the new field at zero."};
  }
  known = {};
  std::memcpy(&known, bytes, std::min(size, sizeof(T)));
  return {};
}

// A caller's options of opening, of which the first struct of this ABI version ended before `cache`; the defaults where there
// are none.
inline Status read_options(const zo_open_options* options, zo_open_options& known) {
  known = {};
  if (options != nullptr) {
    ZO_TRY(read_struct(*options, offsetof(zo_open_options, cache), "zo_open_options", known));
  }
  known.struct_size = sizeof(zo_open_options);
  return {};
}

// Fills a caller's struct as far as it reaches.
template <typename T>
Status write_struct(T value, size_t least, const char* name, T* target) {
  const uint32_t size = target->struct_size;
  if (size < least || size > kLargestStruct) {
    return bad_size(size, sizeof(T), name);
  }
  value.struct_size = size;
  auto* bytes = reinterpret_cast<unsigned char*>(target);
  std::memcpy(bytes, &value, std::min<size_t>(size, sizeof(T)));
  std::fill(bytes + std::min<size_t>(size, sizeof(T)), bytes + size, static_cast<unsigned char>(0));
  return {};
}

}  // namespace zoexport::c
