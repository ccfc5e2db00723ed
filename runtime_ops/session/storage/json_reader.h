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
  std::string where(const std::string& path) const { return path.empty() ? document_ : document_ + ", " + path; }
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

  bool is_null() const { return value_ != nullptr && value_->is_null(); }
  bool is_object() const { return value_ != nullptr && value_->is_object(); }
  // Return the JSON of a node that exists.
  const nlohmann::json& value() const { return *value_; }
  std::string text() const;
  double number() const;
  bool boolean() const;
  int64_t integer(int64_t least, int64_t most) const;
  uint64_t unsigned_integer() const;
  const std::string& path() const { return path_; }
  // The document and the path, for messages.
  std::string where() const { return problems_->where(path_); }
  void problem(const std::string& expected) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
  JsonProblems* problems_;
};

// Lists and objects inside one another; a manifest needs eight of them.
inline constexpr size_t kMostNested = 64;
// Bytes of a document: the limit of safetensors' headers.
inline constexpr size_t kLongestJson = size_t{100} << 20;

// Parses JSON that someone else wrote, without exceptions; a problem names the document. Refused, as Python's core/outside.py
// refuses them: what is not JSON (RFC 8259) in UTF-8, a longer or more deeply nested document, a name that an object has
// twice, whole numbers beyond 64 bits, and numbers beyond a double. So no two readers of a file see different things in it.
//
// `Json`: nlohmann::json, or nlohmann::ordered_json, whose objects keep the order of their members.
template <typename Json = nlohmann::json>
Result<Json> parse_json(const char* begin, const char* end, zo_status code, const std::string& document,
                        const std::string& fix);

// Parse JSON into `events`, for readers that build something else. `problem` is the reason once `events` refuses one.
Status read_json(const char* begin, const char* end, zo_status code, const std::string& document,
                 const std::string& fix, nlohmann::json_sax<nlohmann::json>& events, const std::string& problem);

}  // namespace zoexport
