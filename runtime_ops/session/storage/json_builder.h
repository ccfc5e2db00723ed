// Builds JSON values from a parser's events, and stops at the first thing that is refused (json_reader.h).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "session/storage/json_reader.h"

namespace zoexport {

template <typename Json = nlohmann::json>
class JsonBuilder : public nlohmann::json_sax<nlohmann::json> {
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

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    // A number that no double holds is reported as out of range.
    return refuse(dynamic_cast<const nlohmann::json::out_of_range*>(&error) != nullptr ? "a number beyond a double"
                                                                                       : "something that is not JSON");
  }

  Json take() { return std::move(root_); }
  const std::string& problem() const { return problem_; }

 private:
  bool refuse(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  // Add a value to the open list or object; null if its name is already present.
  Json* add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    const auto [place, fresh] = parent.template get_ref<typename Json::object_t&>().emplace(key_, std::move(value));
    if (!fresh) {
      refuse("an object with two members of the name " + nlohmann::json(key_).dump(-1, ' ', true).substr(0, 80));
      return nullptr;
    }
    return &place->second;
  }
  bool open(Json value) {
    if (open_.size() == kMostNested) {
      return refuse("more than " + std::to_string(kMostNested) + " lists and objects inside one another");
    }
    // The pointer stays valid until this is closed: only then does its parent get another member.
    Json* const place = add(std::move(value));
    open_.push_back(place);
    return place != nullptr;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> open_;
  std::string key_;
  std::string problem_;
};

}  // namespace zoexport
