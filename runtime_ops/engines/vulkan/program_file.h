// model.vulkan.json: a bundle's programs as dispatches of this engine's shaders (format: docs/targets.md). It may
// come from a stranger: no content makes a dispatch read or write outside of the buffers made for it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "session/manifest/manifest.h"
#include "session/result.h"

namespace zoexport {
namespace vulkan {

enum class Shader : uint8_t { kProduct, kUnpack, kRows, kAttention, kAttentionGradient, kLabels };
inline constexpr size_t kShaders = 6;

// Bytes that every device with Vulkan can bind as one buffer: the pool, or a window of weights.
inline constexpr uint64_t kMostBytes = uint64_t{1} << 27;
inline constexpr size_t kMostWindows = 64;
inline constexpr size_t kMostPushed = 32;  // words of push constants: what every device takes

// A tensor of the pool: its first word or, of fp16, its first element.
struct Place {
  uint32_t at = 0;
  bool is_half = false;
};

// Words of the pool, from the first to before the last.
struct Span {
  uint64_t begin;
  uint64_t end;
  bool meets(const Span& other) const { return begin < other.end && other.begin < end; }
};

// Kinds of dispatches whose costs are counted apart: the shaders, products by what their weights are.
enum class Kind : uint8_t {
  kProduct,
  kProductFp32,
  kProductInt8,
  kProductInt4,
  kRows,
  kAttention,
  kAttentionGradient,
  kLabels,
  kUnpack
};
inline constexpr size_t kKinds = 9;
const char* kind_name(Kind kind);

// Work of a dispatch, by its sizes. An instruction of a row program is one operation, and so is a function such as exp;
// scores that attention recomputes count again. Each word that is read or written counts once.
struct Work {
  double flops = 0;
  double bytes = 0;
};

// One dispatch. `constants` are the shader's specialization constants, by number, or a row program (row_call.h); `pushed` its
// push constants.
struct Dispatch {
  Shader shader = Shader::kProduct;
  std::vector<uint32_t> constants = {};
  std::vector<uint32_t> pushed = {};
  uint32_t groups[3] = {1, 1, 1};
  size_t window = 0;  // that it is given, whether it reads it or not
  std::vector<Span> reads = {};
  std::vector<Span> writes = {};
  Kind kind = Kind::kProduct;
  Work work = {};
  bool has_halves = false;  // among its tensors: the shader that is compiled for these
};

// Bytes of an input, `bytes` from the byte `from` on, that are copied to the byte `at` of a window.
struct WindowPart {
  size_t window;
  uint64_t at;
  uint64_t from;
  uint64_t bytes;
};

// Destination of an input, which is copied before the dispatches.
struct InputPlace {
  bool in_pool = false;
  uint32_t word = 0;                   // of the pool
  std::vector<WindowPart> parts = {};  // one, or several if the input is too large for a window
};

// Rows of the first axis of the input `table`, by `count` numbers of the input `indices` from `first` on, to a word of the
// pool.
struct Gather {
  size_t table;
  size_t indices;
  uint64_t first;
  uint64_t count;
  uint32_t to;
};

// An input of labels, each of them below `vocabulary`.
struct LabelInput {
  size_t input;
  int64_t vocabulary;
};

struct Program {
  uint64_t words = 0;       // of the pool
  bool has_halves = false;  // tensors of fp16
  // For a program with such tensors that computes gradients: proportional inputs and outputs. The inputs may be scaled
  // to bring the gradients between them into the range of fp16; the outputs are then scaled back.
  std::vector<size_t> scaled_inputs, scaled_outputs;
  std::vector<InputPlace> inputs;
  std::vector<uint32_t> outputs;  // the word at which each begins
  std::vector<Gather> gathers;
  std::vector<LabelInput> labels;
  std::vector<Dispatch> dispatches;
};

struct ProgramFile {
  uint64_t words = 0;                       // of the pool, which all programs share
  std::vector<uint64_t> windows;            // bytes
  std::vector<uint32_t> code;               // where row programs find their tensors
  std::map<std::string, Program> programs;  // by the manifest's entry_point
};

// Parses and checks `text`, the content of `path`, against the programs that the manifest has in that file.
Result<ProgramFile> read_program_file(const std::string& text, const std::string& path,
                                      const std::vector<const ProgramSpec*>& programs);

}  // namespace vulkan
}  // namespace zoexport
