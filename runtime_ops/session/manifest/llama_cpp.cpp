#include "session/manifest/llama_cpp.h"

#include "session/storage/json_reader.h"

namespace zoexport {
namespace {

constexpr int64_t kMostRows = int64_t{1} << 30;

std::string read_name(const JsonNode& node) {
  const std::string name = node.text();
  if (name.empty()) {
    node.problem("a name");
  }
  return name;
}

RowOrder read_order(const JsonNode& node) {
  const auto count = [&](const char* key) { return static_cast<uint32_t>(node.member(key).integer(1, kMostRows)); };
  RowOrder order;
  if (node.has("pairs")) {
    order.pairs = count("pairs");
  } else {
    order.groups = count("groups");
    order.width = count("width");
  }
  return order;
}

}  // namespace

LlamaCppSpec read_llama_cpp(const JsonNode& node) {
  LlamaCppSpec spec;
  if (node.has("problem")) {
    spec.problem = node.member("problem").text();
    if (spec.problem.empty()) {
      node.member("problem").problem("a sentence");
    }
    return spec;
  }
  spec.architecture = read_name(node.member("architecture"));
  for (const auto& [module, entry] : node.member("layers").entries()) {
    LlamaCppLayer& layer = spec.layers[module];
    layer.weight = read_name(entry.member("weight"));
    if (entry.has("order")) {
      layer.order = read_order(entry.member("order"));
    }
  }
  return spec;
}

}  // namespace zoexport
