#include "engines/vulkan/program_file.h"

#include <algorithm>

#include "engines/vulkan/places.h"
#include "engines/vulkan/row_call.h"
#include "session/storage/json_reader.h"
#include "session/storage/sizes.h"

namespace zoexport {
namespace vulkan {
namespace {

const char* const kFormat = "zoexport-vulkan-1";
constexpr int64_t kMostWords = static_cast<int64_t>(kMostBytes / 4);
constexpr size_t kMostCode = size_t{1} << 24;
constexpr size_t kMostDispatches = 8192;  // of a program
constexpr uint64_t kMostGroups = 65535;   // of an axis of a dispatch, on every device
constexpr uint32_t kNone = UINT32_MAX;    // of a tensor that a shader does not get

constexpr uint32_t kTile = 32, kSlice = 64;                  // of shaders/attention.glsl
constexpr uint32_t kProductRows = 64, kProductColumns = 64;  // of shaders/product.comp
// Mesa's llvmpipe ends a shader, without a word, after 65,535 rounds of its loops together (LP_MAX_TGSI_LOOP_ITERATIONS). Products
// of a sum that one dispatch makes, a multiple of the parts of shaders/product.comp: each 16 take up to 34 rounds.
constexpr uint32_t kMostDepth = 16384;
// Rounds for the gradients of a key, of the heads that one dispatch adds up.
constexpr uint64_t kMostKeyRounds = 60000;
constexpr uint32_t kUnpackThreads = 128, kMostUnpackGroups = 1024;  // of shaders/unpack.comp
constexpr uint32_t kPool = 0, kFloats = 1, kInt4 = 2, kInt8 = 3;    // where product.comp finds a matrix

uint64_t parts(uint64_t count, uint64_t size) { return (count + size - 1) / size; }

double real(uint64_t count) { return static_cast<double>(count); }

uint64_t bytes_of(const ValueSpec& value) {
  uint64_t bytes = dtype_bytes(value.dtype);
  for (const Dimension& size : value.shape) {
    bytes = size_product(bytes, static_cast<uint64_t>(std::max<int64_t>(size.max, 0)));
  }
  return bytes;
}

// Bytes of a row of a table.
uint64_t row_bytes(const ValueSpec& value) {
  ValueSpec row = value;
  row.shape.erase(row.shape.begin());
  return bytes_of(row);
}

class Reader {
 public:
  Reader(const ProgramSpec& spec, const JsonNode& node, ProgramFile& file) : spec_(spec), node_(node), file_(file) {}

  Program read() {
    program_.words = static_cast<uint64_t>(node_.member("words").integer(1, kMostWords));
    read_inputs();
    read_outputs();
    for (const JsonNode& gather : node_.member("gathers").items()) {
      read_gather(gather);
    }
    for (const JsonNode& call : node_.member("calls").items()) {
      read_call(call);
    }
    find_scaled();
    return std::move(program_);
  }

 private:
  // The word at which `count` words of the pool begin.
  uint32_t place(const JsonNode& node, uint64_t count) const {
    if (count > program_.words) {
      node.problem("a tensor within the pool");
      return 0;
    }
    return static_cast<uint32_t>(node.integer(0, static_cast<int64_t>(program_.words - count)));
  }

  uint32_t size(const JsonNode& call, const char* key, int64_t least = 1, int64_t most = kMostWords) const {
    return static_cast<uint32_t>(call.member(key).integer(least, most));
  }

  void read_inputs() {
    const JsonNode list = node_.member("inputs");
    const std::vector<JsonNode> items = list.items();
    if (items.size() != spec_.inputs.size()) {
      list.problem(std::to_string(spec_.inputs.size()) + " inputs, as the manifest has");
      return;
    }
    for (size_t i = 0; i < items.size(); ++i) {
      const uint64_t bytes = bytes_of(spec_.inputs[i]);
      InputPlace found;
      found.in_pool = items[i].has("pool");
      if (found.in_pool) {
        found.word = place(items[i].member("pool"), parts(bytes, 4));
      }
      for (const char* key : {"window", "parts"}) {
        if (items[i].has(key) && spec_.inputs[i].role != "weight") {
          items[i].member(key).problem("none, as only weights stay the same");
        }
      }
      if (items[i].has("window")) {
        found.parts.push_back(window_part(items[i], 0, bytes));
      } else if (items[i].has("parts")) {
        for (const JsonNode& part : items[i].member("parts").items()) {
          const auto all = static_cast<int64_t>(std::min<uint64_t>(bytes, INT64_MAX));
          const int64_t from = part.member("from").integer(0, all - 1);
          const int64_t count = part.member("bytes").integer(1, all - from);
          found.parts.push_back(window_part(part, static_cast<uint64_t>(from), static_cast<uint64_t>(count)));
        }
      }
      program_.inputs.push_back(std::move(found));
    }
  }

  WindowPart window_part(const JsonNode& node, uint64_t from, uint64_t bytes) const {
    const size_t window = window_of(node);
    return {window, window_place(node.member("at"), window, bytes), from, bytes};
  }

  size_t window_of(const JsonNode& node) const {
    const int64_t last = static_cast<int64_t>(file_.windows.size()) - 1;
    return static_cast<size_t>(node.member("window").integer(0, std::max<int64_t>(last, 0)));
  }

  // The byte of a window at which `bytes` begin.
  uint64_t window_place(const JsonNode& node, size_t window, uint64_t bytes) const {
    const uint64_t room = window < file_.windows.size() ? file_.windows[window] : 0;
    if (bytes > room) {
      node.problem("a matrix within its window");
      return 0;
    }
    const auto at = static_cast<uint64_t>(node.integer(0, static_cast<int64_t>(room - bytes)));
    if (at % 4 != 0) {
      node.problem("a multiple of 4");
    }
    return at;
  }

  // Gradients of a call are proportional to the gradient that it is given or, of the head, to the labels' weights.
  void find_scaled() {
    const auto with = [](const std::vector<ValueSpec>& values, const char* role, const char* other) {
      std::vector<size_t> found;
      for (size_t i = 0; i < values.size(); ++i) {
        if (values[i].dtype == ZO_FLOAT32 && (values[i].role == role || values[i].role == other)) {
          found.push_back(i);
        }
      }
      return found;
    };
    program_.has_halves = std::any_of(program_.dispatches.begin(), program_.dispatches.end(),
                                      [](const Dispatch& dispatch) { return dispatch.has_halves; });
    if (program_.has_halves) {
      program_.scaled_outputs = with(spec_.outputs, "input_gradient", "state_gradient");
    }
    if (!program_.scaled_outputs.empty()) {
      program_.scaled_inputs = with(spec_.inputs, "output_gradient", "label_weights");
    }
  }

  void read_outputs() {
    const JsonNode list = node_.member("outputs");
    const std::vector<JsonNode> items = list.items();
    if (items.size() != spec_.outputs.size()) {
      list.problem(std::to_string(spec_.outputs.size()) + " outputs, as the manifest has");
      return;
    }
    for (size_t i = 0; i < items.size(); ++i) {
      program_.outputs.push_back(place(items[i], parts(bytes_of(spec_.outputs[i]), 4)));
    }
  }

  // Return the number of an int64 input whose first `needed` values are read.
  size_t read_indices(const JsonNode& node, uint64_t needed) const {
    const auto input = static_cast<size_t>(node.integer(0, static_cast<int64_t>(spec_.inputs.size()) - 1));
    if (input >= spec_.inputs.size() || spec_.inputs[input].dtype != ZO_INT64 ||
        size_product(needed, sizeof(int64_t)) > bytes_of(spec_.inputs[input])) {
      node.problem("an input of int64 with so many numbers");
      return 0;
    }
    return input;
  }

  void read_gather(const JsonNode& node) {
    Gather gather{};
    const JsonNode table = node.member("table");
    gather.table = static_cast<size_t>(table.integer(0, static_cast<int64_t>(spec_.inputs.size()) - 1));
    gather.first = size(node, "first", 0);
    gather.count = size(node, "count");
    gather.indices = read_indices(node.member("indices"), gather.first + gather.count);
    if (gather.table >= spec_.inputs.size() || spec_.inputs[gather.table].shape.empty()) {
      table.problem("an input with rows");
      return;
    }
    const uint64_t bytes = size_product(gather.count, row_bytes(spec_.inputs[gather.table]));
    gather.to = place(node.member("to"), parts(bytes, 4));
    program_.gathers.push_back(gather);
  }

  void read_call(const JsonNode& call) {
    const std::string op = call.member("op").text();
    if (op == "product") {
      read_product(call);
    } else if (op == "unpack") {
      read_unpack(call);
    } else if (op == "rows") {
      add(call, read_row_call(call, program_.words, file_.code));
    } else if (op == "attention") {
      read_attention(call, false);
    } else if (op == "attention_gradient") {
      read_attention(call, true);
    } else if (op == "labels") {
      read_labels(call);
    } else {
      call.member("op").problem("a call that this engine has");
    }
  }

  // Add a dispatch; return false if it is not valid or there is no room for it.
  bool add(const JsonNode& call, Dispatch dispatch) {
    const auto refused = [&](const std::string& expected) {
      call.problem(expected);
      return false;
    };
    for (size_t i = 0; i < dispatch.writes.size(); ++i) {
      const Span& written = dispatch.writes[i];
      const auto meets = [&](const Span& other) { return &other != &written && written.meets(other); };
      if (std::any_of(dispatch.reads.begin(), dispatch.reads.end(), meets) ||
          std::any_of(dispatch.writes.begin(), dispatch.writes.end(), meets)) {
        return refused("results that overlap nothing else of the call");
      }
    }
    for (const uint32_t groups : dispatch.groups) {
      if (groups == 0 || groups > kMostGroups) {
        return refused("sizes that a dispatch can have");
      }
    }
    if (file_.code.size() > kMostCode) {
      return refused("row programs of " + std::to_string(kMostCode) + " words together, at most");
    }
    if (program_.dispatches.size() == kMostDispatches) {
      return refused("calls of " + std::to_string(kMostDispatches) + " dispatches together, at most");
    }
    // Reads of rows have holes, and a product may be one part of several.
    if (dispatch.shader != Shader::kRows && dispatch.shader != Shader::kProduct) {
      for (const std::vector<Span>* spans : {&dispatch.reads, &dispatch.writes}) {
        for (const Span& span : *spans) {
          dispatch.work.bytes += 4 * real(span.end - span.begin);
        }
      }
    }
    program_.dispatches.push_back(std::move(dispatch));
    return true;
  }

  // A tensor of `count` words that a dispatch reads; kNone if the call has none.
  uint32_t reads(const JsonNode& call, const char* key, uint64_t count, Dispatch& dispatch,
                 bool optional = false) const {
    if (optional && !call.has(key)) {
      return kNone;
    }
    const uint32_t at = place(call.member(key), count);
    dispatch.reads.push_back({at, at + count});
    return at;
  }
  uint32_t writes(const JsonNode& call, const char* key, uint64_t count, Dispatch& dispatch) const {
    const uint32_t at = place(call.member(key), count);
    dispatch.writes.push_back({at, at + count});
    return at;
  }

  // The same for `count` numbers, which may be fp16.
  Place reads_numbers(const JsonNode& call, const char* key, uint64_t count, Dispatch& dispatch,
                      bool optional = false) const {
    if (optional && !call.has(key)) {
      return {kNone, false};
    }
    const Place found = read_place(call.member(key), count, program_.words);
    dispatch.reads.push_back(span_of(found, count));
    dispatch.has_halves |= found.is_half;
    return found;
  }
  Place writes_numbers(const JsonNode& call, const char* key, uint64_t count, Dispatch& dispatch) const {
    const Place found = read_place(call.member(key), count, program_.words);
    dispatch.writes.push_back(span_of(found, count));
    dispatch.has_halves |= found.is_half;
    return found;
  }

  static void set_groups(Dispatch& dispatch, uint64_t x, uint64_t y, uint64_t z) {
    const uint64_t groups[] = {x, y, z};
    for (size_t i = 0; i < 3; ++i) {
      dispatch.groups[i] = static_cast<uint32_t>(std::min<uint64_t>(groups[i], UINT32_MAX));
    }
  }

  struct Matrix {
    uint32_t from = kPool;
    uint32_t at = 0;
    bool is_half = false;
    uint32_t scales = 0;
    uint32_t group = 1;
    uint32_t pitch = 0;
  };

  // From the first number of a row to that of the next, of rows of `width` that may be parts of longer ones.
  uint32_t pitch_of(const JsonNode& call, const std::string& key, uint32_t width) const {
    const std::string name = key + "_pitch";
    return call.has(name.c_str()) ? size(call, name.c_str(), width) : width;
  }
  // From the first number of the first row to the last of the last.
  static uint64_t extent(uint64_t rows, uint64_t width, uint64_t pitch) {
    return size_product(rows, pitch) - (pitch - width);
  }

  // An operand of a product: a word of the pool, or a weight of a window, which is (rows, width) as it is stored.
  Matrix read_matrix(const JsonNode& call, const char* key, uint64_t batch, uint32_t rows, uint32_t width,
                     Dispatch& dispatch) const {
    const JsonNode node = call.member(key);
    Matrix matrix;
    matrix.pitch = pitch_of(call, key, width);
    if (!node.is_object() || node.has("half")) {
      const uint64_t all_rows = size_product(batch, rows);
      const Place place = reads_numbers(call, key, extent(all_rows, width, matrix.pitch), dispatch);
      matrix.at = place.at;
      matrix.is_half = place.is_half;
      dispatch.work.bytes += bytes_of(place, size_product(all_rows, width));
      return matrix;
    }
    if (matrix.pitch != width) {
      call.member((std::string(key) + "_pitch").c_str()).problem("the width of a weight, or none");
    }
    const std::string kind = node.member("kind").text();
    const uint64_t elements = size_product(rows, width);
    dispatch.window = window_of(node);
    dispatch.kind = Kind::kProductFp32;
    uint64_t bytes = size_product(elements, 4), scales = 0;
    matrix.from = kFloats;
    if (kind == "int4") {
      matrix.from = kInt4;
      dispatch.kind = Kind::kProductInt4;
      matrix.group = static_cast<uint32_t>(node.member("group").integer(32, kMostWords));
      if (width % matrix.group != 0 || matrix.group % 32 != 0) {
        node.member("group").problem("a multiple of 32 that divides the width");
        return matrix;
      }
      bytes = elements / 2;
      scales = size_product(rows, 2 * (uint64_t{width} / matrix.group));
    } else if (kind == "int8") {
      matrix.from = kInt8;
      dispatch.kind = Kind::kProductInt8;
      bytes = elements;
      scales = size_product(rows, 4);
    } else if (kind != "fp32") {
      node.member("kind").problem("fp32, int8 or int4");
    }
    if (batch != 1) {
      node.problem("one matrix for a batch of one");
    }
    dispatch.work.bytes += real(bytes) + real(scales);
    // A shader reads whole words.
    matrix.at = static_cast<uint32_t>(window_place(node.member("at"), dispatch.window, 4 * parts(bytes, 4)) / 4);
    if (scales > 0) {
      matrix.scales =
          static_cast<uint32_t>(window_place(node.member("scales"), dispatch.window, 4 * parts(scales, 4)) / 4);
    }
    return matrix;
  }

  void read_product(const JsonNode& call) {
    const uint32_t batch = size(call, "batch"), rows = size(call, "rows"), columns = size(call, "columns"),
                   depth = size(call, "depth");
    const std::vector<JsonNode> transposed = call.member("transposed").items();
    if (transposed.size() != 2) {
      call.member("transposed").problem("two words, true or false");
      return;
    }
    const bool turned_a = transposed[0].boolean(), turned_b = transposed[1].boolean();
    Dispatch dispatch{Shader::kProduct};
    const Matrix a = turned_a ? read_matrix(call, "a", batch, depth, rows, dispatch)
                              : read_matrix(call, "a", batch, rows, depth, dispatch);
    const Matrix b = turned_b ? read_matrix(call, "b", batch, columns, depth, dispatch)
                              : read_matrix(call, "b", batch, depth, columns, dispatch);
    if (a.from != kPool && (a.from != kFloats || b.from != kPool)) {
      call.member("a").problem("numbers of the pool, or fp32 weights beside numbers of the pool");
    }
    const uint64_t results = size_product(batch, size_product(rows, columns));
    const uint32_t pitch = pitch_of(call, "out", columns);
    const uint64_t between = extent(size_product(batch, rows), columns, pitch);
    const Place bias = reads_numbers(call, "bias", columns, dispatch, true);
    const Place out = writes_numbers(call, "out", between, dispatch);
    const Place added = call.has("add") ? read_place(call.member("add"), between, program_.words) : Place{kNone, false};
    dispatch.has_halves |= added.is_half;
    // `add` may be `out`, as each element is read and written in the same place.
    if (added.at != kNone && (added.at != out.at || added.is_half != out.is_half)) {
      dispatch.reads.push_back(span_of(added, between));
    }
    const double matrices = dispatch.work.bytes;
    set_groups(dispatch, parts(columns, kProductColumns), parts(rows, kProductRows), batch);
    for (uint32_t first = 0; first < depth; first += kMostDepth) {
      Dispatch part = dispatch;
      // The result of the previous dispatch is added like another tensor, element by element in its place.
      const Place before = first == 0 ? added : out;
      const bool adds = before.at != kNone, has_bias = first == 0 && bias.at != kNone;
      const uint32_t past = std::min(depth - first, kMostDepth) + first;
      part.constants = {a.from, b.from, turned_a, turned_b, adds, has_bias};
      if (part.has_halves) {
        part.constants.insert(part.constants.end(), {a.is_half, b.is_half, before.is_half, bias.is_half, out.is_half});
      }
      part.pushed = {rows,    columns, depth, a.at, b.at,    b.scales, b.group, before.at,
                     bias.at, out.at,  first, past, a.pitch, b.pitch,  pitch};
      part.work.flops = 2 * real(results) * (past - first);
      part.work.bytes = matrices * (past - first) / depth + bytes_of(out, results) +
                        (adds ? bytes_of(before, results) : 0) + (has_bias ? bytes_of(bias, columns) : 0);
      if (!add(call, std::move(part))) {
        return;
      }
    }
  }

  void read_unpack(const JsonNode& call) {
    const uint32_t rows = size(call, "rows"), width = size(call, "width"), group = size(call, "group", 0);
    const uint64_t elements = size_product(rows, width);
    Dispatch dispatch{Shader::kUnpack, {group > 0}};
    dispatch.kind = Kind::kUnpack;
    dispatch.work.flops = 2 * real(elements);
    if (group > 0 && (group % 32 != 0 || width % group != 0)) {
      call.member("group").problem("a multiple of 32 that divides the width, or 0");
      return;
    }
    const uint32_t codes = reads(call, "codes", group > 0 ? elements / 8 : parts(elements, 4), dispatch);
    const uint32_t scales = group > 0 ? reads(call, "scales", parts(elements / group, 2), dispatch) : 0;
    const Place out = writes_numbers(call, "out", elements, dispatch);
    dispatch.constants.push_back(out.is_half);
    dispatch.pushed = {static_cast<uint32_t>(elements), codes, scales, std::max<uint32_t>(group, 1), out.at};
    set_groups(dispatch, std::min<uint64_t>(parts(elements, kUnpackThreads), kMostUnpackGroups), 1, 1);
    add(call, std::move(dispatch));
  }

  void read_attention(const JsonNode& call, bool gradient) {
    const uint32_t batches = size(call, "batches"), tokens = size(call, "tokens"), heads = size(call, "heads"),
                   groups = size(call, "groups"), depth = size(call, "depth"), width = size(call, "width");
    const auto scale = static_cast<uint32_t>(call.member("scale").integer(0, UINT32_MAX));
    const bool causal = call.member("causal").boolean();
    const uint32_t window = size(call, "window", 0);
    if (heads % groups != 0) {
      call.member("groups").problem("a number that divides heads");
      return;
    }
    const uint64_t rows = size_product(batches, tokens);
    const auto tensor = [&](uint64_t of_heads, uint64_t size_of_head) {
      return size_product(rows, size_product(of_heads, size_of_head));
    };
    Dispatch first{Shader::kAttention};
    first.kind = gradient ? Kind::kAttentionGradient : Kind::kAttention;
    const Place of_q = reads_numbers(call, "q", tensor(heads, depth), first);
    // One shader reads and writes all of them, so they have the same type.
    const auto alike = [&](const char* key, const Place& place) {
      if (place.is_half != of_q.is_half) {
        call.member(key).problem("a tensor of fp16 or fp32, as q is");
      }
      return place.at;
    };
    const auto reads_alike = [&](const char* key, uint64_t count, Dispatch& dispatch) {
      return alike(key, reads_numbers(call, key, count, dispatch));
    };
    const auto writes_alike = [&](const char* key, uint64_t count, Dispatch& dispatch) {
      return alike(key, writes_numbers(call, key, count, dispatch));
    };
    const uint32_t q = of_q.at;
    const uint32_t k = reads_alike("k", tensor(groups, depth), first);
    const uint32_t v = reads_alike("v", tensor(groups, width), first);
    const uint32_t bias = reads(call, "bias", rows, first, true);
    const uint64_t outs = tensor(heads, width);
    // Two operations for each pair of a query and a key that it sees.
    const double seen = std::min(window > 0 && causal ? window : tokens, tokens);
    const double pairs =
        2 * real(batches) * heads * (causal ? seen * (seen + 1) / 2 + (tokens - seen) * seen : real(tokens) * tokens);
    const std::vector<uint32_t> sizes = {tokens, heads, groups, depth, width, scale, causal, window, q, k, v, bias};
    first.pushed = sizes;
    first.constants = {of_q.is_half};
    if (!gradient) {
      first.pushed.push_back(writes_alike("out", outs, first));
      first.pushed.push_back(writes(call, "lse", tensor(heads, 1), first));
      set_groups(first, parts(tokens, kTile), heads, size_product(batches, parts(width, kSlice)));
      first.work.flops = pairs * (real(parts(width, kSlice)) * depth + width);
      add(call, std::move(first));
      return;
    }
    first.shader = Shader::kAttentionGradient;
    first.pushed.push_back(reads_alike("out", outs, first));
    first.pushed.push_back(reads(call, "lse", tensor(heads, 1), first));
    first.pushed.push_back(reads_alike("gradient", outs, first));
    Dispatch second = first;
    const uint32_t dq = writes_alike("dq", tensor(heads, depth), first);
    const uint32_t dk = writes_alike("dk", tensor(groups, depth), second);
    const uint32_t dv = writes_alike("dv", tensor(groups, width), second);
    for (Dispatch* dispatch : {&first, &second}) {
      dispatch->pushed.insert(dispatch->pushed.end(), {dq, dk, dv});
    }
    const double scores = real(depth) + width;  // and the gradients of probabilities
    const uint64_t slices[] = {parts(depth, kSlice), parts(std::max(depth, width), kSlice)};
    first.constants = {of_q.is_half, 0, 0};
    first.pushed.insert(first.pushed.end(), {0, 0});
    first.work.flops = pairs * (real(slices[0]) * scores + depth);
    set_groups(first, parts(tokens, kTile), heads, size_product(batches, slices[0]));
    add(call, std::move(first));
    set_groups(second, parts(tokens, kTile), groups, size_product(batches, slices[1]));
    // Two products of a head's rows with up to 21 rounds for each 16 columns, sums of the results by their gradients, and 48 beside.
    const uint64_t of_tile = 21 * (parts(depth, 16) + parts(width, 16)) + parts(width, 4) + 48;
    const uint64_t at_once = std::max<uint64_t>(kMostKeyRounds / (of_tile * parts(tokens, kTile)), 1);
    const uint32_t of_group = heads / groups;
    for (uint32_t head = 0, past = 0; head < of_group; head = past) {
      past = static_cast<uint32_t>(std::min<uint64_t>(head + at_once, of_group));
      Dispatch part = second;
      part.constants = {of_q.is_half, 1, head > 0};
      part.pushed.insert(part.pushed.end(), {head, past});
      part.work.flops = pairs * (real(slices[1]) * scores + depth + width) * (past - head) / of_group;
      if (!add(call, std::move(part))) {
        return;
      }
    }
  }

  void read_labels(const JsonNode& call) {
    const uint32_t copies = size(call, "copies"), entries = size(call, "entries"),
                   vocabulary = size(call, "vocabulary");
    const uint64_t rows = size_product(copies, entries);
    const uint64_t logits = size_product(rows, vocabulary);
    const bool gradient = call.has("gradient");
    const size_t tokens = read_indices(call.member("tokens"), entries);
    if (tokens >= program_.inputs.size() || !program_.inputs[tokens].in_pool) {
      call.member("tokens").problem("an input that is in the pool");
      return;
    }
    Dispatch dispatch{Shader::kLabels, {gradient}};
    dispatch.kind = Kind::kLabels;
    // Greatest, difference, exp and sum of every logit; of its gradient a difference, exp, quotient and product.
    dispatch.work.flops = (gradient ? 8 : 4) * real(logits);
    const uint64_t first = program_.inputs[tokens].word;
    dispatch.reads.push_back({first, first + 2 * uint64_t{entries}});
    dispatch.pushed = {entries, vocabulary, reads(call, "logits", logits, dispatch), static_cast<uint32_t>(first),
                       gradient ? reads(call, "weights", rows, dispatch) : kNone};
    dispatch.pushed.push_back(writes(call, "logprobs", rows, dispatch));
    dispatch.pushed.push_back(writes(call, "is_argmax", rows, dispatch));
    const Place slopes = gradient ? writes_numbers(call, "gradient", logits, dispatch) : Place{kNone, false};
    dispatch.pushed.push_back(slopes.at);
    dispatch.constants.push_back(slopes.is_half);
    program_.labels.push_back({tokens, vocabulary});
    set_groups(dispatch, rows, 1, 1);
    add(call, std::move(dispatch));
  }

  const ProgramSpec& spec_;
  const JsonNode& node_;
  ProgramFile& file_;
  Program program_;
};

}  // namespace

const char* kind_name(Kind kind) {
  const char* const names[kKinds] = {"product",   "product fp32",       "product int8", "product int4", "rows",
                                     "attention", "attention_gradient", "labels",       "unpack"};
  return names[static_cast<size_t>(kind)];
}

Result<ProgramFile> read_program_file(const std::string& text, const std::string& path,
                                      const std::vector<const ProgramSpec*>& programs) {
  const char* const fix = "Compile the bundle with this version of zoexport, or copy it again.";
  ZO_ASSIGN(document, parse_json(text.data(), text.data() + text.size(), ZO_ENGINE_ERROR, path, fix));
  JsonProblems problems(ZO_ENGINE_ERROR, path, fix);
  const JsonNode root(&document, "", &problems);
  ProgramFile file;
  const JsonNode format = root.member("format");
  if (format.text() != kFormat) {
    format.problem(std::string("\"") + kFormat + "\"");
  }
  ZO_TRY(problems.status());
  for (const JsonNode& window : root.member("windows").items()) {
    file.windows.push_back(static_cast<uint64_t>(window.integer(0, static_cast<int64_t>(kMostBytes))));
  }
  if (file.windows.empty() || file.windows.size() > kMostWindows) {
    root.member("windows").problem("1 to " + std::to_string(kMostWindows) + " windows");
  }
  ZO_TRY(problems.status());
  const JsonNode all = root.member("programs");
  for (const ProgramSpec* spec : programs) {
    const JsonNode node = all.member(spec->entry_point.c_str());
    Program program = Reader(*spec, node, file).read();
    ZO_TRY(problems.status());
    file.words = std::max(file.words, program.words);
    file.programs[spec->entry_point] = std::move(program);
  }
  return file;
}

}  // namespace vulkan
}  // namespace zoexport
