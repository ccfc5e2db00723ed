// The shaders on the device that Vulkan has, which is a CPU where no GPU is: products, attention, labels and row programs of
// sizes that fill no tile, against the kernels of the CPU and sums in double.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "engines/vulkan/device.h"
#include "kernels/attention.h"
#include "kernels/half.h"
#include "kernels/int4.h"
#include "kernels/label_logprobs.h"
#include "rng/normal.h"
#include "vulkan_files.h"

namespace {

using namespace zoexport;
using vulkan::Device;
using vulkan_files::value;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
using Floats = std::vector<float>;

Floats noise(uint32_t id, size_t count) {
  Floats values(count);
  rng::normals(rng::Stream{7, id, 0, 0}, 0, count, values.data());
  return values;
}

Device& device() {
  static const std::unique_ptr<Device> shared = [] {
    auto opened = Device::open();
    if (!opened.ok()) {
      const Failure& failure = opened.failure();
      std::fprintf(stderr, "%s: %s; %s\n", failure.found.c_str(), failure.expected.c_str(), failure.fix.c_str());
      std::exit(1);
    }
    return std::move(*opened);
  }();
  return *shared;
}

// What the pool holds after the program of a file. A device of its own for each.
Floats ran(const vulkan::ProgramFile& file, Floats words, const std::vector<uint8_t>& window, double most_seconds) {
  const std::vector<vulkan::Dispatch>& dispatches = file.programs.at("p").dispatches;
  const bool timed = most_seconds == vulkan::kMostSubmission;
  auto opened = Device::open("", timed);
  const auto pool = (*opened)->make_buffer(4 * words.size());
  auto weights = (*opened)->make_buffer((window.size() + 15) / 16 * 16);
  const auto code = (*opened)->make_buffer(4 * file.code.size());
  CHECK(pool.ok() && weights.ok() && code.ok());
  CHECK((*opened)->bytes() >= pool->bytes + weights->bytes + code->bytes);
  std::memcpy(pool->data, words.data(), 4 * words.size());
  std::copy(window.begin(), window.end(), weights->data);
  std::memcpy(code->data, file.code.data(), 4 * file.code.size());
  std::vector<Device::Buffer> windows;
  windows.push_back(std::move(*weights));
  const auto sets = (*opened)->bind(*pool, windows, *code);
  const auto recording = (*opened)->record(dispatches, *sets, most_seconds);
  CHECK(sets.ok() && recording.ok() && (*opened)->submit(*recording).ok());
  // Each dispatch has its time, where the device has a clock and is asked.
  const auto seconds = (*opened)->seconds(*recording);
  CHECK(seconds.ok() && (seconds->empty() || (timed && seconds->size() == dispatches.size())));
  CHECK(std::all_of(seconds->begin(), seconds->end(), [](double one) { return one >= 0 && one < 60; }));
  std::memcpy(words.data(), pool->data, 4 * words.size());
  return words;
}

// Tensors one after another in the pool, in multiples of four words.
class Pool {
 public:
  std::string add(const Floats& values) {
    const size_t at = words_.size();
    words_.insert(words_.end(), values.begin(), values.end());
    words_.resize((words_.size() + 3) / 4 * 4, kNan);
    return std::to_string(at);
  }
  std::string room(size_t count) { return add(Floats(count, kNan)); }

  // Tensors of fp16, of which the first element may be the second of a word.
  std::string add_halves(const Floats& values, size_t skipped = 0) {
    std::vector<uint16_t> halves(2 * ((values.size() + skipped + 1) / 2), 0x7E00);
    std::transform(values.begin(), values.end(), halves.begin() + static_cast<std::ptrdiff_t>(skipped),
                   kernels::float_to_half);
    Floats words(halves.size() / 2);
    std::memcpy(words.data(), halves.data(), 2 * halves.size());
    return "{\"half\":" + std::to_string(2 * std::stoul(add(words)) + skipped) + "}";
  }
  std::string room_of_halves(size_t count) { return add_halves(Floats(count, kNan), 1); }

  // Runs one call, and keeps what the pool holds afterwards.
  void run(const std::string& call, const std::vector<uint8_t>& window = {}, const std::string& inputs = "",
           ProgramSpec spec = {}) {
    const std::string text = vulkan_files::file(
        words_.size(), "\"inputs\":[" + inputs + "],\"outputs\":[],\"gathers\":[],\"calls\":[" + call + "]",
        std::to_string((window.size() + 15) / 16 * 16));
    const auto file = vulkan_files::read(text, spec);
    if (!CHECK(file.ok())) {
      std::fprintf(stderr, "%s: %s; %s\n", file.failure().where.c_str(), file.failure().found.c_str(),
                   file.failure().expected.c_str());
      return;
    }
    const Floats before = words_;
    words_ = ran(*file, before, window, vulkan::kMostSubmission);
    // In as many submissions as there are workgroups: the same bits.
    const Floats apart = ran(*file, before, window, 1e-12);
    CHECK(std::memcmp(words_.data(), apart.data(), 4 * words_.size()) == 0);
  }

  Floats halves_at(const std::string& place, size_t count) const {
    const size_t first = std::stoul(place.substr(std::strlen("{\"half\":")));
    std::vector<uint16_t> halves(2 * words_.size());
    std::memcpy(halves.data(), words_.data(), 2 * halves.size());
    Floats found(count);
    const auto begin = halves.begin() + static_cast<std::ptrdiff_t>(first);
    std::transform(begin, begin + static_cast<std::ptrdiff_t>(count), found.begin(), kernels::half_to_float);
    return found;
  }

  Floats at(const std::string& place, size_t count) const {
    const auto begin = words_.begin() + std::stol(place);
    return {begin, begin + static_cast<std::ptrdiff_t>(count)};
  }

 private:
  Floats words_;
};

// The norm of the difference over that of what is expected; infinite where one is no number.
double difference(const Floats& found, const Floats& expected) {
  double apart = 0, norm = 1e-12;  // of what is all but nothing the difference itself counts
  for (size_t i = 0; i < expected.size(); ++i) {
    apart += std::pow(double{found[i]} - double{expected[i]}, 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  const double relative = std::sqrt(apart / norm);
  return relative < kInfinity ? relative : kInfinity;
}

std::string number(size_t value) { return std::to_string(value); }
std::string word(bool value) { return value ? "true" : "false"; }
std::string bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return std::to_string(bits);
}

struct Shape {
  size_t batch, rows, columns, depth;
};
// The last is as deep as a vocabulary: llvmpipe ends a shader after 65,535 rounds of all its loops.
const Shape kShapes[] = {{1, 1, 1, 1},     {1, 33, 65, 17}, {3, 5, 130, 70},
                         {1, 64, 8, 4100}, {2, 70, 64, 16}, {1, 2, 3, 50001}};

std::string product(const Shape& s, bool turned_a, bool turned_b, const std::string& a, const std::string& b,
                    const std::string& others) {
  return R"({"op":"product","batch":)" + number(s.batch) + R"(,"rows":)" + number(s.rows) + R"(,"columns":)" +
         number(s.columns) + R"(,"depth":)" + number(s.depth) + R"(,"transposed":[)" + word(turned_a) + "," +
         word(turned_b) + R"(],"a":)" + a + R"(,"b":)" + b + "," + others + "}";
}

Floats multiplied(const Shape& s, const Floats& a, const Floats& b, bool turned_a, bool turned_b) {
  Floats c(s.batch * s.rows * s.columns);
  for (size_t i = 0; i < c.size(); ++i) {
    const size_t batch = i / (s.rows * s.columns), row = i / s.columns % s.rows, column = i % s.columns;
    double sum = 0;
    for (size_t d = 0; d < s.depth; ++d) {
      const float x = a[batch * s.rows * s.depth + (turned_a ? d * s.rows + row : row * s.depth + d)];
      const float y = b[batch * s.depth * s.columns + (turned_b ? column * s.depth + d : d * s.columns + column)];
      sum += double{x} * double{y};
    }
    c[i] = static_cast<float>(sum);
  }
  return c;
}

void test_products() {
  for (const Shape& s : kShapes) {
    const Floats a = noise(1, s.batch * s.rows * s.depth), b = noise(2, s.batch * s.depth * s.columns);
    const Floats more = noise(3, s.batch * s.rows * s.columns), bias = noise(4, s.columns);
    for (int form = 0; form < 8; ++form) {
      const bool turned_a = (form & 1) != 0, turned_b = (form & 2) != 0, adds = (form & 4) != 0;
      Floats expected = multiplied(s, a, b, turned_a, turned_b);
      for (size_t i = 0; adds && i < expected.size(); ++i) {
        expected[i] += more[i] + bias[i % s.columns];
      }
      Pool pool;
      const std::string x = pool.add(a), y = pool.add(b), z = pool.add(more), w = pool.add(bias);
      const std::string out = pool.room(expected.size());
      const std::string others = (adds ? "\"add\":" + z + ",\"bias\":" + w + "," : "") + "\"out\":" + out;
      pool.run(product(s, turned_a, turned_b, x, y, others));
      CHECK(difference(pool.at(out, expected.size()), expected) < 2e-6);
    }
  }
}

// A matrix in the window, as a second operand and, of float32, as a first one.
void test_weights() {
  const size_t sizes[][2] = {{70, 32}, {70, 96}, {70, 4096}, {50001, 32}};
  for (const auto& [rows, width] : sizes) {
    const size_t tokens = 35;
    std::vector<uint8_t> codes(rows * width / 2);
    std::vector<uint16_t> scales(rows * width / 32);
    for (size_t i = 0; i < codes.size(); ++i) {
      codes[i] = static_cast<uint8_t>(i * 37 + i / 251);
    }
    for (size_t i = 0; i < scales.size(); ++i) {
      scales[i] = static_cast<uint16_t>(0x3C00 + i % 300);
    }
    Floats numbers(rows * width);
    for (size_t row = 0; row < rows; ++row) {
      kernels::int4_dequantize_row({codes.data(), scales.data(), rows, width, 32}, row, &numbers[row * width]);
    }
    std::vector<uint8_t> window(codes);
    const size_t at = window.size();
    window.resize(at + 2 * scales.size());
    std::memcpy(&window[at], scales.data(), 2 * scales.size());
    const std::string weight = R"({"kind":"int4","window":0,"at":0,"scales":)" + number(at) + R"(,"group":32})";
    for (const bool forward : {true, false}) {
      const Shape s{1, tokens, forward ? rows : width, forward ? width : rows};
      const Floats x = noise(5, s.rows * s.depth);
      Pool pool;
      const std::string a = pool.add(x), out = pool.room(s.rows * s.columns);
      pool.run(product(s, false, forward, a, weight, "\"out\":" + out), window);
      CHECK(difference(pool.at(out, s.rows * s.columns), multiplied(s, x, numbers, false, forward)) < 2e-6);
    }
  }
  // int8 of a width that fills no words.
  const size_t rows = 9, width = 37;
  Floats numbers(rows * width);
  std::vector<uint8_t> window(size_t{336} + 4 * rows);
  const Floats scales = noise(6, rows);
  for (size_t i = 0; i < numbers.size(); ++i) {
    window[i] = static_cast<uint8_t>(i * 91);
    numbers[i] = static_cast<float>(static_cast<int8_t>(window[i])) * scales[i / width];
  }
  std::memcpy(&window[336], scales.data(), 4 * rows);
  for (const bool forward : {true, false}) {
    const Shape s{1, 4, forward ? rows : width, forward ? width : rows};
    const Floats x = noise(7, s.rows * s.depth);
    Pool pool;
    const std::string a = pool.add(x), out = pool.room(s.rows * s.columns);
    pool.run(product(s, false, forward, a, R"({"kind":"int8","window":0,"at":0,"scales":336})", "\"out\":" + out),
             window);
    CHECK(difference(pool.at(out, s.rows * s.columns), multiplied(s, x, numbers, false, forward)) < 2e-6);
  }
  const Shape s{1, 40, 6, 50};
  const Floats a = noise(8, s.rows * s.depth), b = noise(9, s.depth * s.columns);
  std::vector<uint8_t> floats(4 * a.size());
  std::memcpy(floats.data(), a.data(), floats.size());
  Pool pool;
  const std::string y = pool.add(b), out = pool.room(s.rows * s.columns);
  pool.run(product(s, false, false, R"({"kind":"fp32","window":0,"at":0})", y, "\"out\":" + out), floats);
  CHECK(difference(pool.at(out, s.rows * s.columns), multiplied(s, a, b, false, false)) < 2e-6);
}

// Rows of `width` out of `values`, as parts of rows that are `before` and `after` longer.
Floats widened(const Floats& values, size_t width, size_t before, size_t after) {
  const size_t rows = values.size() / width, pitch = before + width + after;
  Floats found(rows * pitch, kNan);
  for (size_t row = 0; row < rows; ++row) {
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(row * width), width,
                found.begin() + static_cast<std::ptrdiff_t>(row * pitch + before));
  }
  return found;
}

// Operands whose rows are parts of longer ones: nothing beside them is read or written, whatever is transposed or of fp16. Then
// once more, adding to what is there.
void test_columns_of_tensors(bool halves) {
  const Shape shapes[] = {{1, 1, 1, 1}, {1, 33, 65, 17}, {3, 5, 130, 70}, {1, 2, 3, 20001}};
  for (const Shape& s : shapes) {
    const auto stored = [&](Floats values) {
      for (float& value : values) {
        value = halves ? kernels::half_to_float(kernels::float_to_half(value / 8)) : value;
      }
      return values;
    };
    const Floats a = stored(noise(1, s.batch * s.rows * s.depth)), b = stored(noise(2, s.batch * s.depth * s.columns));
    for (int form = 0; form < 4; ++form) {
      const bool turned_a = (form & 1) != 0, turned_b = (form & 2) != 0;
      const size_t a_width = turned_a ? s.rows : s.depth, b_width = turned_b ? s.depth : s.columns;
      const Floats nothing(s.batch * s.rows * s.columns, 0.5f), wide = widened(nothing, s.columns, 1, 4);
      Pool pool;
      const auto later = [&](const std::string& place, size_t first) {
        const size_t at = std::stoul(halves ? place.substr(std::strlen("{\"half\":")) : place) + first;
        return halves ? "{\"half\":" + number(at) + "}" : number(at);
      };
      const auto add = [&](const Floats& values, size_t first) {
        return later(halves ? pool.add_halves(values) : pool.add(values), first);
      };
      const std::string x = add(widened(a, a_width, 3, 2), 3), y = add(widened(b, b_width, 2, 5), 2);
      const std::string all = add(wide, 0), within = later(all, 1);
      const std::string call =
          product(s, turned_a, turned_b, x, y,
                  R"("a_pitch":)" + number(a_width + 5) + R"(,"b_pitch":)" + number(b_width + 7) + R"(,"out_pitch":)" +
                      number(s.columns + 5) + R"(,"add":)" + within + R"(,"out":)" + within);
      pool.run(call + "," + call);
      const Floats found = halves ? pool.halves_at(all, wide.size()) : pool.at(all, wide.size());
      Floats expected = multiplied(s, a, b, turned_a, turned_b), results;
      for (float& value : expected) {
        value = 0.5f + 2 * value;
      }
      for (size_t i = 0; i < wide.size(); ++i) {
        const size_t column = i % (s.columns + 5);
        if (column >= 1 && column <= s.columns) {
          results.push_back(found[i]);
        } else {
          CHECK(std::isnan(found[i]));
        }
      }
      CHECK(difference(results, expected) < (halves ? 4e-3 : 2e-6));
    }
  }
}

// A matrix in parts of some of its rows: forward the same bits, and so is a gradient whose parts are those in which sums are made.
void test_parts_of_weights() {
  struct Kind {
    const char* name;
    size_t rows, width, at_once, row_bytes, row_scales;
    bool same;
  };
  const Kind kinds[] = {{"int4", 70, 96, 32, 48, 6, false},  {"int4", 40001, 32, 16384, 16, 2, true},
                        {"int8", 23, 37, 8, 37, 4, false},   {"int8", 40000, 5, 32768, 5, 4, true},
                        {"fp32", 131, 20, 65, 80, 0, false}, {"fp32", 20000, 3, 16384, 12, 0, true}};
  for (const Kind& kind : kinds) {
    const std::string name = kind.name;
    const size_t scales = (kind.rows * kind.row_bytes + 3) / 4 * 4;
    std::vector<uint8_t> window(scales + (kind.rows * kind.row_scales + 3) / 4 * 4);
    for (size_t i = 0; i < scales; ++i) {
      window[i] = static_cast<uint8_t>(i * 37 + i / 251);
    }
    const Floats numbers = noise(3, std::max(kind.rows * kind.width, kind.rows));
    if (name == "fp32") {
      std::memcpy(window.data(), numbers.data(), window.size());
    } else if (name == "int8") {
      std::memcpy(&window[scales], numbers.data(), kind.rows * 4);
    } else {
      for (size_t i = scales; i < window.size(); i += 2) {
        const uint16_t scale = static_cast<uint16_t>(0x3C00 + i % 300);
        std::memcpy(&window[i], &scale, sizeof(scale));
      }
    }
    const auto weight = [&](size_t first) {
      return R"({"kind":")" + name + R"(","window":0,"at":)" + number(first * kind.row_bytes) +
             (name == "fp32" ? "" : R"(,"scales":)" + number(scales + first * kind.row_scales)) +
             (name == "int4" ? R"(,"group":32)" : "") + "}";
    };
    const size_t tokens = 5;
    for (const bool forward : {true, false}) {
      const Shape s{1, tokens, forward ? kind.rows : kind.width, forward ? kind.width : kind.rows};
      Pool pool;
      const std::string x = pool.add(noise(5, tokens * s.depth)), bias = pool.add(noise(6, s.columns));
      const std::string out = pool.room(tokens * s.columns), again = pool.room(tokens * s.columns);
      pool.run(product(s, false, forward, x, weight(0), R"("bias":)" + bias + R"(,"out":)" + out), window);
      std::string calls;
      for (size_t first = 0; first < kind.rows; first += kind.at_once) {
        const size_t count = std::min(kind.at_once, kind.rows - first);
        const auto later = [&](const std::string& place) { return number(std::stoul(place) + first); };
        const Shape part{1, tokens, forward ? count : s.columns, forward ? s.depth : count};
        const std::string others =
            forward ? R"("bias":)" + later(bias) + R"(,"out_pitch":)" + number(kind.rows) + R"(,"out":)" + later(again)
                    : R"("a_pitch":)" + number(kind.rows) + (first == 0 ? R"(,"bias":)" + bias : R"(,"add":)" + again) +
                          R"(,"out":)" + again;
        calls += (first == 0 ? "" : ",") + product(part, false, forward, forward ? x : later(x), weight(first), others);
      }
      pool.run(calls, window);
      const Floats whole = pool.at(out, tokens * s.columns), found = pool.at(again, tokens * s.columns);
      CHECK(difference(found, whole) < 2e-6);
      CHECK(found == whole || (!forward && !kind.same));
    }
  }
}

struct AttentionShape {
  size_t batches, tokens, heads, groups, depth, width, window;
  bool causal, biased;
};

void test_attention() {
  const AttentionShape shapes[] = {
      {1, 1, 1, 1, 8, 8, 0, true, false},       {2, 70, 4, 2, 16, 16, 0, true, false},
      {1, 65, 3, 1, 80, 80, 0, false, true},    {1, 100, 2, 2, 128, 96, 7, true, false},
      {2, 33, 2, 1, 24, 40, 33, true, true},    {1, 96, 1, 1, 20, 200, 40, true, false},
      {1, 1030, 25, 1, 16, 16, 9, true, false},  // gradients of keys in two dispatches
      {2, 40, 2, 1, 16, 16, 0, false, true},     // the last batch is hidden
  };
  for (const AttentionShape& s : shapes) {
    const size_t queries = s.batches * s.tokens * s.heads, keys = s.batches * s.tokens * s.groups;
    const Floats q = noise(1, queries * s.depth), k = noise(2, keys * s.depth), v = noise(3, keys * s.width);
    const Floats dout = noise(4, queries * s.width);
    Floats bias = noise(5, s.batches * s.tokens);
    const size_t hidden = s.batches > 1 && !s.causal ? s.tokens : s.tokens / 4;
    std::fill(bias.end() - static_cast<std::ptrdiff_t>(hidden), bias.end(), std::numeric_limits<float>::lowest());
    const float scale = 1 / std::sqrt(static_cast<float>(s.depth));
    const kernels::Attention attention{q.data(),  k.data(), v.data(), s.biased ? bias.data() : nullptr,
                                       s.batches, s.tokens, s.heads,  s.groups,
                                       s.depth,   s.width,  scale,    s.causal,
                                       s.window};
    Floats out(queries * s.width), lse(queries), dq(q.size()), dk(k.size()), dv(v.size());
    const kernels::AttentionGradient gradient{out.data(), lse.data(), dout.data(), dq.data(), dk.data(), dv.data()};
    CHECK(kernels::run_attention(attention, {out.data(), lse.data()}, 0, kernels::attention_tasks(attention).count));
    for (size_t round = 0; round < kernels::gradient_rounds(attention); ++round) {
      CHECK(kernels::run_gradient(attention, gradient, round, 0, kernels::gradient_tasks(attention, round).count));
    }
    Pool pool;
    const std::string sizes = R"("batches":)" + number(s.batches) + R"(,"tokens":)" + number(s.tokens) +
                              R"(,"heads":)" + number(s.heads) + R"(,"groups":)" + number(s.groups) + R"(,"depth":)" +
                              number(s.depth) + R"(,"width":)" + number(s.width) + R"(,"scale":)" + bits(scale) +
                              R"(,"causal":)" + word(s.causal) + R"(,"window":)" + number(s.window) + R"(,"q":)" +
                              pool.add(q) + R"(,"k":)" + pool.add(k) + R"(,"v":)" + pool.add(v) +
                              (s.biased ? R"(,"bias":)" + pool.add(bias) : "");
    const std::string outs = pool.room(out.size()), sums = pool.room(lse.size());
    pool.run(R"({"op":"attention",)" + sizes + R"(,"out":)" + outs + R"(,"lse":)" + sums + "}");
    CHECK(difference(pool.at(outs, out.size()), out) < 2e-6);
    CHECK(difference(pool.at(sums, lse.size()), lse) < 2e-6);
    const std::string douts = pool.add(dout), of_q = pool.room(dq.size()), of_k = pool.room(dk.size()),
                      of_v = pool.room(dv.size());
    pool.run(R"({"op":"attention_gradient",)" + sizes + R"(,"out":)" + outs + R"(,"lse":)" + sums + R"(,"gradient":)" +
             douts + R"(,"dq":)" + of_q + R"(,"dk":)" + of_k + R"(,"dv":)" + of_v + "}");
    // Nothing moves the one score of a token that sees itself alone.
    const auto is_nothing = [&](const Floats& found) {
      return s.tokens == 1 && std::all_of(found.begin(), found.end(), [](float x) { return std::fabs(x) < 1e-6f; });
    };
    for (const auto& [place, expected] : {std::pair(of_q, dq), std::pair(of_k, dk)}) {
      const Floats found = pool.at(place, expected.size());
      CHECK(is_nothing(found) || difference(found, expected) < 5e-6);
    }
    CHECK(difference(pool.at(of_v, dv.size()), dv) < 5e-6);
  }
}

void test_labels() {
  const size_t entries = 7, vocabulary = 1000;
  Floats logits = noise(1, entries * vocabulary);
  std::vector<int64_t> tokens = {0, 999, 500, 3, 4, 5, 6};
  logits[2 * vocabulary + 500] = 40;                             // all but certain
  logits[3 * vocabulary + 7] = kNan;                             // a run that diverged
  logits[4 * vocabulary + 7] = kInfinity;                        // likewise
  logits[5 * vocabulary + 5] = logits[5 * vocabulary + 9] = 30;  // the label is the first of two greatest
  logits[6 * vocabulary + 2] = logits[6 * vocabulary + 6] = 30;  // and is not
  const Floats weights = noise(2, entries);
  Floats logprobs(entries), is_argmax(entries), gradient(logits.size());
  kernels::label_gradient_rows(logits.data(), tokens.data(), weights.data(), vocabulary, 0, entries, logprobs.data(),
                               is_argmax.data(), gradient.data());
  Pool pool;
  Floats words(2 * entries);
  std::memcpy(words.data(), tokens.data(), sizeof(int64_t) * entries);
  const std::string labels = pool.add(words), x = pool.add(logits), w = pool.add(weights);
  const std::string of_logprobs = pool.room(entries), firsts = pool.room(entries), out = pool.room(gradient.size());
  ProgramSpec spec;
  spec.inputs = {value("labels", "label_tokens", ZO_INT64, {static_cast<int64_t>(entries)})};
  pool.run(R"({"op":"labels","copies":1,"entries":7,"vocabulary":1000,"tokens":0,"logits":)" + x + R"(,"weights":)" +
               w + R"(,"logprobs":)" + of_logprobs + R"(,"is_argmax":)" + firsts + R"(,"gradient":)" + out + "}",
           {}, "{\"pool\":" + labels + "}", spec);
  const Floats found = pool.at(of_logprobs, entries), found_gradient = pool.at(out, gradient.size());
  CHECK(pool.at(firsts, entries) == is_argmax);
  for (size_t m = 0; m < entries; ++m) {
    CHECK(std::isnan(logprobs[m]) ? std::isnan(found[m]) : std::fabs(found[m] - logprobs[m]) < 4e-6f);
    const auto row = [&](const Floats& all) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(m * vocabulary);
      return Floats(begin, begin + static_cast<std::ptrdiff_t>(vocabulary));
    };
    const double apart = difference(row(found_gradient), row(gradient));
    if (!CHECK(std::isnan(logprobs[m]) ? std::isnan(row(found_gradient)[1]) : apart < 4e-6)) {
      std::fprintf(stderr, "row %zu: %g apart\n", m, apart);
    }
  }
}

struct Function {
  int op;
  double (*expected)(double);
};

// Every function of one number, over what it is defined for and beyond.
void test_row_functions() {
  const Function functions[] = {
      {10, [](double x) { return -x; }},
      {11, [](double x) { return std::exp(x); }},
      {12, [](double x) { return std::log(x); }},
      {13, [](double x) { return std::sqrt(x); }},
      {14, [](double x) { return 1 / std::sqrt(x); }},
      {15, [](double x) { return 1 / x; }},
      {16, [](double x) { return 1 / (1 + std::exp(-x)); }},
      {17, [](double x) { return std::tanh(x); }},
      {18, [](double x) { return std::erf(x); }},
      {19, [](double x) { return std::fabs(x); }},
  };
  Floats values = {0.0f,  1e-6f, -1e-6f, 0.5f, -0.5f, 0.62f,  0.63f, 0.92f,  0.93f, 3.9f,
                   -3.9f, 10,    -10,    80,   -80,   1e-30f, 1e30f, -1e30f, kNan};
  const Floats others = noise(1, 45);
  values.insert(values.end(), others.begin(), others.end());
  const size_t count = values.size();
  for (const Function& function : functions) {
    Pool pool;
    const std::string in = pool.add(values), out = pool.room(count);
    pool.run(R"({"op":"rows","dims":[1],"reads":[[)" + number(count) + R"(,0,0]],"inputs":[)" + in +
             R"(],"outputs":[)" + out + R"(],"constants":[],"phases":[{"width":)" + number(count) +
             R"(,"once":0,"code":[50,0,0,0,0,0,)" + number(static_cast<size_t>(function.op)) +
             R"(,0,0,0,0,0],"results":[["store",0,0]]}]})");
    const Floats found = pool.at(out, count);
    for (size_t i = 0; i < count; ++i) {
      const auto expected = static_cast<float>(function.expected(double{values[i]}));
      const double apart = std::fabs(double{found[i]} - double{expected});
      const bool same = std::isnan(expected) ? std::isnan(found[i]) : found[i] == expected;
      if (!CHECK(same || apart <= 1e-6 * std::fabs(double{expected}) + 2e-7 || std::fabs(expected) < 1.2e-38f)) {
        std::fprintf(stderr, "opcode %d of %g: %g, expected %g\n", function.op, double{values[i]}, double{found[i]},
                     double{expected});
      }
    }
  }
}

// Comparisons, choices and reductions of rows of several widths, of which one is longer than a workgroup, with NaN.
void test_row_operations() {
  for (const size_t width : {size_t{1}, size_t{5}, size_t{64}, size_t{1000}}) {
    const size_t rows = 19;
    Floats a = noise(1, rows * width), b = noise(2, rows * width);
    a[width / 2] = b[3 * width] = kNan;
    const int ops[] = {0, 1, 2, 3, 4, 5, 20, 21, 22, 23, 24, 25};
    Pool pool;
    const std::string x = pool.add(a), y = pool.add(b);
    std::string outputs, phases;
    std::vector<std::string> places;
    for (size_t i = 0; i < std::size(ops); ++i) {
      places.push_back(pool.room(rows * width));
      outputs += places.back() + ",";
      phases += R"({"width":)" + number(width) + R"(,"once":0,"code":[50,0,0,0,0,0,50,1,1,0,0,0,)" +
                number(static_cast<size_t>(ops[i])) + R"(,2,0,1,0,0],"results":[["store",2,)" + number(i) + "]]},";
    }
    const std::string sums = pool.room(rows), greatest = pool.room(rows);
    phases += R"({"width":)" + number(width) +
              R"(,"once":0,"code":[50,0,0,0,0,0],"results":[["sum",0,3],["max",0,15]]},)"
              R"({"width":1,"once":0,"code":[],"results":[["store",536870915,12],["store",536870927,13]]})";
    outputs += sums + "," + greatest;
    const std::string read = "[" + number(width) + ",0," + number(width) + "]";
    pool.run(R"({"op":"rows","dims":[19],"reads":[)" + read + "," + read + R"(],"inputs":[)" + x + "," + y +
             R"(],"outputs":[)" + outputs + R"(],"constants":[],"phases":[)" + phases + "]}");
    const auto expected = [](int op, float p, float q) -> float {
      switch (op) {
        case 0:
          return p + q;
        case 1:
          return p - q;
        case 2:
          return p * q;
        case 3:
          return p / q;
        case 4:
          return std::isnan(p) || std::isnan(q) ? kNan : std::max(p, q);
        case 5:
          return std::isnan(p) || std::isnan(q) ? kNan : std::min(p, q);
        case 20:
          return p < q ? 1.0f : 0.0f;
        case 21:
          return p <= q ? 1.0f : 0.0f;
        case 22:
          return p > q ? 1.0f : 0.0f;
        case 23:
          return p >= q ? 1.0f : 0.0f;
        case 24:
          return p == q ? 1.0f : 0.0f;
        default:
          return p != q ? 1.0f : 0.0f;
      }
    };
    for (size_t i = 0; i < std::size(ops); ++i) {
      const Floats found = pool.at(places[i], rows * width);
      for (size_t e = 0; e < found.size(); ++e) {
        const float wanted = expected(ops[i], a[e], b[e]);
        CHECK(std::isnan(wanted) ? std::isnan(found[e]) : std::fabs(found[e] - wanted) <= 2.5e-7f * std::fabs(wanted));
      }
    }
    const Floats found = pool.at(sums, rows), most = pool.at(greatest, rows);
    for (size_t row = 0; row < rows; ++row) {
      double sum = 0;
      float top = -kInfinity;
      for (size_t i = 0; i < width; ++i) {
        sum += double{a[row * width + i]};
        top = expected(4, top, a[row * width + i]);
      }
      CHECK(row == 0 ? std::isnan(found[row]) : std::fabs(double{found[row]} - sum) < 1e-4);
      CHECK(row == 0 ? std::isnan(most[row]) : most[row] == top);
    }
  }
}

void test_unpacked_rows() {
  const size_t rows = 3, width = 96;
  std::vector<uint8_t> codes(rows * width / 2);
  std::vector<uint16_t> scales(12);
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<uint8_t>(i * 53 + 7);
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = static_cast<uint16_t>(0x3E00 + 11 * i);
  }
  Floats expected(rows * width);
  for (size_t row = 0; row < rows; ++row) {
    kernels::int4_dequantize_row({codes.data(), scales.data(), rows, width, 32}, row, &expected[row * width]);
  }
  Floats code_words(codes.size() / 4), scale_words(scales.size() / 2);
  std::memcpy(code_words.data(), codes.data(), codes.size());
  std::memcpy(scale_words.data(), scales.data(), 2 * scales.size());
  Pool pool;
  const std::string c = pool.add(code_words), s = pool.add(scale_words), out = pool.room(expected.size());
  pool.run(R"({"op":"unpack","rows":3,"width":96,"group":32,"codes":)" + c + R"(,"scales":)" + s + R"(,"out":)" + out +
           "}");
  CHECK(pool.at(out, expected.size()) == expected);
  const std::string numbers = pool.room(4 * code_words.size());
  pool.run(R"({"op":"unpack","rows":1,"width":144,"group":0,"codes":)" + c + R"(,"out":)" + numbers + "}");
  const Floats found = pool.at(numbers, codes.size());
  for (size_t i = 0; i < codes.size(); ++i) {
    CHECK(found[i] == static_cast<float>(static_cast<int8_t>(codes[i])));
  }
}

Floats rounded(Floats values) {
  for (float& value : values) {
    value = kernels::half_to_float(kernels::float_to_half(value));
  }
  return values;
}
// What rounding a result to fp16 may change, however a device rounds.
constexpr double kOfHalf = 1.0 / 1024;

// Products of which any tensor is of fp16, in three dispatches too; and what leaves its range.
void test_products_of_halves() {
  for (const Shape& s : kShapes) {
    const Floats a = rounded(noise(1, s.batch * s.rows * s.depth)),
                 b = rounded(noise(2, s.batch * s.depth * s.columns));
    const Floats more = rounded(noise(3, s.batch * s.rows * s.columns)), bias = rounded(noise(4, s.columns));
    Floats expected = multiplied(s, a, b, false, true);
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] += more[i] + bias[i % s.columns];
    }
    for (const unsigned halves : {1u, 6u, 16u, 25u, 31u}) {
      const auto is_half = [&](unsigned which) { return (halves >> which & 1) != 0; };
      Pool pool;
      const auto add = [&](unsigned which, const Floats& values) {
        return is_half(which) ? pool.add_halves(values, which % 2) : pool.add(values);
      };
      const std::string x = add(0, a), y = add(1, b), z = add(2, more), w = add(3, bias);
      const std::string out = is_half(4) ? pool.room_of_halves(expected.size()) : pool.room(expected.size());
      pool.run(product(s, false, true, x, y, "\"add\":" + z + ",\"bias\":" + w + ",\"out\":" + out));
      const Floats found = is_half(4) ? pool.halves_at(out, expected.size()) : pool.at(out, expected.size());
      CHECK(difference(found, expected) < (is_half(4) ? 2 * kOfHalf : 2e-6));
    }
  }
  const Floats large = {300, 300, -300, 1};
  Pool pool;
  const std::string x = pool.add_halves(large), out = pool.room_of_halves(4);
  pool.run(product({1, 4, 1, 1}, false, false, x, pool.add({250}), "\"out\":" + out));
  CHECK(pool.halves_at(out, 4) == (Floats{kInfinity, kInfinity, -kInfinity, 250}));
}

void test_attention_of_halves() {
  const size_t tokens = 37, heads = 3, depth = 20;
  const Floats q = rounded(noise(1, tokens * heads * depth)), k = rounded(noise(2, tokens * depth)),
               v = rounded(noise(3, tokens * depth)), dout = rounded(noise(4, q.size()));
  const std::string sizes = R"("batches":1,"tokens":37,"heads":3,"groups":1,"depth":20,"width":20,"scale":)" +
                            bits(0.2f) + R"(,"causal":true,"window":0,)";
  const auto run = [&](Pool& pool, bool halves) {
    const auto add = [&](const Floats& values) { return halves ? pool.add_halves(values, 1) : pool.add(values); };
    const auto room = [&](size_t count) { return halves ? pool.room_of_halves(count) : pool.room(count); };
    const auto at = [&](const std::string& place, size_t count) {
      return halves ? pool.halves_at(place, count) : pool.at(place, count);
    };
    const std::string read = R"("q":)" + add(q) + R"(,"k":)" + add(k) + R"(,"v":)" + add(v);
    const std::string out = room(q.size()), lse = pool.room(tokens * heads);
    pool.run(R"({"op":"attention",)" + sizes + read + R"(,"out":)" + out + R"(,"lse":)" + lse + "}");
    const std::string dq = room(q.size()), dk = room(k.size()), dv = room(v.size());
    pool.run(R"({"op":"attention_gradient",)" + sizes + read + R"(,"out":)" + out + R"(,"lse":)" + lse +
             R"(,"gradient":)" + add(dout) + R"(,"dq":)" + dq + R"(,"dk":)" + dk + R"(,"dv":)" + dv + "}");
    return std::vector<Floats>{at(out, q.size()), at(dq, q.size()), at(dk, k.size()), at(dv, v.size())};
  };
  Pool exact, stored;
  const std::vector<Floats> expected = run(exact, false), found = run(stored, true);
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(difference(found[i], expected[i]) < 3 * kOfHalf);
  }
}

// A row program over columns of both types, the gradient of labels, and rows of a table.
void test_other_halves() {
  const size_t rows = 5, width = 33;
  const Floats x = rounded(noise(1, rows * width)), y = noise(2, rows * width);
  Pool pool;
  const std::string a = pool.add_halves(x, 1), b = pool.add(y), out = pool.room_of_halves(x.size()),
                    same = pool.room(x.size());
  const std::string read = "[33,0,33]";
  pool.run(R"({"op":"rows","dims":[5],"reads":[)" + read + "," + read + R"(],"inputs":[)" + a + "," + b +
           R"(],"outputs":[)" + out + "," + same + R"(],"constants":[],"phases":[{"width":33,"once":0,"code":[)" +
           R"(50,0,0,0,0,0,50,1,1,0,0,0,0,2,0,1,0,0],"results":[["store",2,0],["store",2,1]]}]})");
  const Floats found = pool.halves_at(out, x.size()), precise = pool.at(same, x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    CHECK(precise[i] == x[i] + y[i]);
    CHECK(std::fabs(found[i] - precise[i]) <= kOfHalf * std::fabs(precise[i]) + 1e-7);
  }
  const size_t vocabulary = 333;
  const Floats logits = noise(3, vocabulary);
  Pool labels;
  Floats token(2);
  const int64_t label = 7;
  std::memcpy(token.data(), &label, sizeof(label));
  ProgramSpec spec;
  spec.inputs = {value("labels", "label_tokens", ZO_INT64, {1})};
  const std::string at = labels.add(token), of_logits = labels.add(logits), weights = labels.add({128}),
                    gradient = labels.room_of_halves(vocabulary), exact = labels.room(vocabulary);
  for (const std::string& to : {gradient, exact}) {
    labels.run(R"({"op":"labels","copies":1,"entries":1,"vocabulary":333,"tokens":0,"logits":)" + of_logits +
                   R"(,"weights":)" + weights + R"(,"logprobs":)" + labels.room(1) + R"(,"is_argmax":)" +
                   labels.room(1) + R"(,"gradient":)" + to + "}",
               {}, "{\"pool\":" + at + "}", spec);
  }
  CHECK(difference(labels.halves_at(gradient, vocabulary), labels.at(exact, vocabulary)) < kOfHalf);
  Pool table;
  Floats codes(1);
  std::memcpy(codes.data(), "\x01\xFF\x80\x7F", 4);
  const std::string stored = table.add(codes), numbers = table.room_of_halves(3);
  table.run(R"({"op":"unpack","rows":1,"width":3,"group":0,"codes":)" + stored + R"(,"out":)" + numbers + "}");
  CHECK(table.halves_at(numbers, 3) == (Floats{1, -1, -128}));
}

}  // namespace

int main() {
  std::printf("%s\n", device().name().c_str());
  test_products();
  test_weights();
  test_columns_of_tensors(false);
  test_parts_of_weights();
  test_attention();
  test_labels();
  test_row_functions();
  test_row_operations();
  test_unpacked_rows();
  if (device().has_half_storage()) {
    test_products_of_halves();
    test_columns_of_tensors(true);
    test_attention_of_halves();
    test_other_halves();
  } else {
    std::printf("without fp16 storage\n");
  }
  return check::result();
}
