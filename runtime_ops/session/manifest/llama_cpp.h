// The member "llama_cpp" of a manifest's model: what llama.cpp calls the adapted layers (docs/export.md, "GGUF").
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace zoexport {

class JsonNode;

// In which order llama.cpp keeps a layer's outputs. The two halves of each head are interleaved, or groups of some heads' queries,
// a key and a value become all queries, all keys and all values; at most one of the two.
struct RowOrder {
  uint32_t pairs = 0;   // heads whose halves are interleaved
  uint32_t groups = 0;  // of heads
  uint32_t width = 0;   // outputs of a head of these
};

struct LlamaCppLayer {
  std::string weight;  // such as "blk.0.attn_q.weight"
  RowOrder order;
};

struct LlamaCppSpec {
  std::string problem;  // why there are no names; what follows is empty then
  std::string architecture;
  std::map<std::string, LlamaCppLayer> layers;  // by module
};

LlamaCppSpec read_llama_cpp(const JsonNode& node);

}  // namespace zoexport
