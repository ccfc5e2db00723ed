// Typed access to JSON that someone else wrote: the first thing that is not as expected becomes the failure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "session/result.h"

namespace zoexport {

// Collects the first problem of one document.
class JsonProblems {
 public:
  JsonProblems(zo_status code, std::string document, std::string fix)
      : code_(code), document_(std::move(document)), fix_(std::move(fix)) {}
  void add(const std::string& path, const std::string& found, const std::string& expected);
  Status status() const { return failure_ ? Status(*failure_) : Status(); }

 private:
  zo_status code_;
  std::string document_;
  std::string fix_;
  std::optional<Failure> failure_;
};

// A value with its path. Reading something that is not there, or of another kind, adds a problem and gives an empty value.
class JsonNode {
 public:
  JsonNode(const nlohmann::json* value, std::string path, JsonProblems* problems)
      : value_(value), path_(std::move(path)), problems_(problems) {}

  bool has(const char* key) const;
  JsonNode member(const char* key) const;
  std::vector<JsonNode> items() const;  // of a list
  // Keys and values of an object.
  std::vector<std::pair<std::string, JsonNode>> entries() const;

  bool is_object() const { return value_ != nullptr && value_->is_object(); }
  std::string text() const;
  double number() const;
  bool boolean() const;
  int64_t integer(int64_t least, int64_t most) const;
  uint64_t unsigned_integer() const;
  const std::string& path() const { return path_; }
  void problem(const std::string& expected) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
  JsonProblems* problems_;
};

// Parses without exceptions; a problem names the document.
Result<nlohmann::json> parse_json(const char* begin, const char* end, zo_status code, const std::string& document,
                                  const std::string& fix);

}  // namespace zoexport
