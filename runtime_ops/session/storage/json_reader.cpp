#include "session/storage/json_reader.h"

#include <cstring>

#include "session/storage/json_builder.h"

namespace zoexport {

using nlohmann::json;

namespace {

// Return whether the text has bytes that the parser would skip or take for the end of the text.
bool has_bytes_of_no_json(const char* begin, size_t size) {
  return (size >= 3 && std::memcmp(begin, "\xEF\xBB\xBF", 3) == 0) ||
         (size > 0 && std::memchr(begin, '\0', size) != nullptr);
}

}  // namespace

void JsonProblems::add(const std::string& path, const std::string& found, const std::string& expected) {
  if (!failure_) {
    failure_ = Failure{code_, where(path), found, expected, fix_};
  }
}

bool JsonNode::has(const char* key) const {
  return is_object() && value_->find(key) != value_->end() && !value_->find(key)->is_null();
}

void JsonNode::problem(const std::string& expected) const {
  std::string found = "nothing";
  if (value_ != nullptr) {
    found = value_->dump(-1, ' ', true, json::error_handler_t::replace);
    if (found.size() > 80) {
      found = found.substr(0, 77) + "...";
    }
  }
  problems_->add(path_, found, expected);
}

JsonNode JsonNode::member(const char* key) const {
  const std::string path = path_.empty() ? key : path_ + "." + key;
  if (value_ != nullptr && !value_->is_object()) {
    problem("an object");
    return {nullptr, path, problems_};
  }
  return {has(key) ? &*value_->find(key) : nullptr, path, problems_};
}

std::vector<JsonNode> JsonNode::items() const {
  std::vector<JsonNode> nodes;
  if (value_ == nullptr || !value_->is_array()) {
    problem("a list");
    return nodes;
  }
  for (const json& item : *value_) {
    nodes.emplace_back(&item, path_ + "[" + std::to_string(nodes.size()) + "]", problems_);
  }
  return nodes;
}

std::vector<std::pair<std::string, JsonNode>> JsonNode::entries() const {
  std::vector<std::pair<std::string, JsonNode>> nodes;
  if (!is_object()) {
    problem("an object");
    return nodes;
  }
  for (auto item = value_->begin(); item != value_->end(); ++item) {
    nodes.emplace_back(item.key(), JsonNode(&item.value(), path_ + "." + item.key(), problems_));
  }
  return nodes;
}

std::string JsonNode::text() const {
  if (value_ == nullptr || !value_->is_string()) {
    problem("a text");
    return {};
  }
  return value_->get_ref<const std::string&>();
}

double JsonNode::number() const {
  if (value_ == nullptr || !value_->is_number()) {
    problem("a number");
    return 0;
  }
  return value_->get<double>();
}

bool JsonNode::boolean() const {
  if (value_ == nullptr || !value_->is_boolean()) {
    problem("true or false");
    return false;
  }
  return value_->get<bool>();
}

int64_t JsonNode::integer(int64_t least, int64_t most) const {
  const bool fits = value_ != nullptr && value_->is_number_integer() &&
                    !(value_->is_number_unsigned() && value_->get<uint64_t>() > uint64_t{INT64_MAX});
  if (!fits || value_->get<int64_t>() < least || value_->get<int64_t>() > most) {
    problem("a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    return least;
  }
  return value_->get<int64_t>();
}

uint64_t JsonNode::unsigned_integer() const {
  if (value_ == nullptr || !value_->is_number_unsigned()) {
    problem("a whole number of at least 0");
    return 0;
  }
  return value_->get<uint64_t>();
}

Status read_json(const char* begin, const char* end, zo_status code, const std::string& document,
                 const std::string& fix, nlohmann::json_sax<json>& events, const std::string& problem) {
  const auto size = static_cast<size_t>(end - begin);
  const auto refused = [&](std::string found) { return Failure{code, document, std::move(found), "valid JSON", fix}; };
  if (size == 0) {
    return refused("an empty document");
  }
  if (size > kLongestJson) {
    return refused(std::to_string(size) + " bytes, more than " + std::to_string(kLongestJson));
  }
  if (has_bytes_of_no_json(begin, size)) {
    return refused("something that is not JSON");
  }
  if (!json::sax_parse(begin, end, &events)) {
    return refused(problem);
  }
  return {};
}

template <typename Json>
Result<Json> parse_json(const char* begin, const char* end, zo_status code, const std::string& document,
                        const std::string& fix) {
  JsonBuilder<Json> builder;
  ZO_TRY(read_json(begin, end, code, document, fix, builder, builder.problem()));
  return builder.take();
}

template Result<json> parse_json(const char*, const char*, zo_status, const std::string&, const std::string&);
template Result<nlohmann::ordered_json> parse_json(const char*, const char*, zo_status, const std::string&,
                                                   const std::string&);

}  // namespace zoexport
