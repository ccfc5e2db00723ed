#include "session/manifest/canonical.h"

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "session/storage/json_reader.h"

namespace zoexport {
namespace {

using nlohmann::json;

// A SAX handler, because a parsed number no longer knows how it was written.
class Canonicalizer : public nlohmann::json_sax<json> {
 public:
  explicit Canonicalizer(std::string without) : without_(std::move(without)) { frames_.emplace_back(); }

  bool null() override { return add("null"); }
  bool boolean(bool value) override { return add(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return add(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& written) override { return add(written); }
  bool string(string_t& value) override { return add(quote(value)); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(true); }
  bool key(string_t& value) override {
    frames_.back().key = value;
    return true;
  }
  bool end_object() override {
    std::string text = "{";
    const bool top = frames_.size() == 2;
    for (const auto& [key, value] : frames_.back().members) {
      if (top && key == without_) {
        continue;
      }
      text += (text.size() > 1 ? "," : "") + quote(key) + ":" + value;
    }
    frames_.pop_back();
    return add(text + "}");
  }
  bool start_array(std::size_t) override { return open(false); }
  bool end_array() override {
    std::string text = "[" + frames_.back().items + "]";
    frames_.pop_back();
    return add(text);
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  const std::string& text() const { return frames_.front().items; }

 private:
  struct Frame {
    bool object = false;
    std::string key;
    std::map<std::string, std::string> members;
    std::string items;
  };

  static std::string quote(const std::string& value) {
    return json(value).dump(-1, ' ', false, json::error_handler_t::replace);
  }
  bool open(bool object) {
    frames_.emplace_back();
    frames_.back().object = object;
    return frames_.size() - 1 <= kMostNested;
  }
  bool add(const std::string& value) {
    Frame& frame = frames_.back();
    if (frame.object) {
      frame.members[frame.key] = value;
    } else {
      frame.items += (frame.items.empty() ? "" : ",") + value;
    }
    return true;
  }

  std::string without_;
  std::vector<Frame> frames_;
};

}  // namespace

Result<std::string> canonical_json(const std::string& text, const std::string& without) {
  Canonicalizer handler(without);
  if (!json::sax_parse(text, &handler)) {
    return Failure{ZO_BUNDLE_ERROR, "manifest", "something that is not JSON", "valid JSON",
                   "Compile the bundle again."};
  }
  return handler.text();
}

}  // namespace zoexport
