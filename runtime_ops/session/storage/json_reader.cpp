#include "session/storage/json_reader.h"

#include <cstring>

namespace zoexport {

using nlohmann::json;

namespace {

// Builds the value, and stops at the first thing that is refused.
class Builder : public nlohmann::json_sax<json> {
 public:
  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t& written) override {
    // The parser gives whole numbers that are too large as floats.
    if (written.find_first_of(".eE") == std::string::npos) {
      return refuse("a whole number beyond 64 bits");
    }
    return add(value) != nullptr;
  }
  bool string(string_t& value) override { return add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(json::object()); }
  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    // A number that no double holds is reported as out of range.
    return refuse(dynamic_cast<const json::out_of_range*>(&error) != nullptr ? "a number beyond a double"
                                                                             : "something that is not JSON");
  }

  json take() { return std::move(root_); }
  const std::string& problem() const { return problem_; }

 private:
  bool refuse(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  // Adds a value to the list or object that is open; null where its name is there already.
  json* add(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    const auto [place, fresh] = parent.get_ref<json::object_t&>().emplace(key_, std::move(value));
    if (!fresh) {
      refuse("an object with two members of the name " + json(key_).dump(-1, ' ', true).substr(0, 80));
      return nullptr;
    }
    return &place->second;
  }
  bool open(json value) {
    if (open_.size() == kMostNested) {
      return refuse("more than " + std::to_string(kMostNested) + " lists and objects inside one another");
    }
    // Stays where it is until it is closed: only then does its parent get another member.
    json* const place = add(std::move(value));
    open_.push_back(place);
    return place != nullptr;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  json root_;
  std::vector<json*> open_;
  std::string key_;
  std::string problem_;
};

// What the parser would take for the end of the text, or leave out.
bool has_bytes_of_no_json(const char* begin, size_t size) {
  return (size >= 3 && std::memcmp(begin, "\xEF\xBB\xBF", 3) == 0) ||
         (size > 0 && std::memchr(begin, '\0', size) != nullptr);
}

}  // namespace

void JsonProblems::add(const std::string& path, const std::string& found, const std::string& expected) {
  if (!failure_) {
    failure_ = Failure{code_, path.empty() ? document_ : document_ + ", " + path, found, expected, fix_};
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

Result<json> parse_json(const char* begin, const char* end, zo_status code, const std::string& document,
                        const std::string& fix) {
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
  Builder builder;
  if (!json::sax_parse(begin, end, &builder)) {
    return refused(builder.problem());
  }
  return builder.take();
}

}  // namespace zoexport
