// Errors are values: Status for calls without a result, Result<T> for the others.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "zoexport/session.h"

namespace zoexport {

// One failure, with the four parts of every zoexport message.
struct Failure {
  zo_status code = ZO_INTERNAL_ERROR;
  std::string where;
  std::string found;
  std::string expected;
  std::string fix;
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Failure failure) : failure_(std::move(failure)) {}  // NOLINT: a Failure is returned as a Status
  bool ok() const { return !failure_.has_value(); }
  const Failure& failure() const { return *failure_; }

 private:
  std::optional<Failure> failure_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : held_(std::move(value)) {}            // NOLINT: values and failures are returned as they are
  Result(Failure failure) : held_(std::move(failure)) {}  // NOLINT
  bool ok() const { return std::holds_alternative<T>(held_); }
  const Failure& failure() const { return std::get<Failure>(held_); }
  T& operator*() { return std::get<T>(held_); }
  const T& operator*() const { return std::get<T>(held_); }
  T* operator->() { return &std::get<T>(held_); }
  const T* operator->() const { return &std::get<T>(held_); }

 private:
  std::variant<T, Failure> held_;
};

#define ZO_CONCAT_INNER(a, b) a##b
#define ZO_CONCAT(a, b) ZO_CONCAT_INNER(a, b)

// Returns the failure of `expression` from the calling function, if it has one.
#define ZO_TRY(expression)            \
  do {                                \
    auto&& zo_status_ = (expression); \
    if (!zo_status_.ok()) {           \
      return zo_status_.failure();    \
    }                                 \
  } while (false)

// Declares `target` with the value of `expression`, or returns its failure.
#define ZO_ASSIGN(target, expression) ZO_ASSIGN_INNER(ZO_CONCAT(zo_result_, __LINE__), target, expression)
#define ZO_ASSIGN_INNER(result, target, expression) \
  auto result = (expression);                       \
  if (!result.ok()) {                               \
    return result.failure();                        \
  }                                                 \
  auto target = std::move(*result)

}  // namespace zoexport
