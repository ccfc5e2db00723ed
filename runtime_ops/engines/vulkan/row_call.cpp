#include "engines/vulkan/row_call.h"

#include <algorithm>
#include <bitset>
#include <utility>

#include "engines/vulkan/places.h"
#include "session/storage/sizes.h"

namespace zoexport {
namespace vulkan {
namespace {

constexpr size_t kReads = 32, kResults = 8;
constexpr uint64_t kThreads = 64, kLeastLanes = 8;  // of a workgroup, and of a row
constexpr size_t kMostRank = 5, kMostPhases = 64, kMostSteps = 1024, kMostConstants = 1024;
constexpr uint64_t kMostGroups = 65535;  // of an axis of a dispatch

uint32_t bits(int64_t value) { return static_cast<uint32_t>(static_cast<int32_t>(value)); }

class RowReader {
 public:
  RowReader(const JsonNode& call, uint64_t words, std::vector<uint32_t>& code)
      : call_(call), words_(words), code_(code) {}

  Dispatch read() {
    const size_t begin = code_.size();
    dims();
    reads();
    constants();
    const std::vector<JsonNode> phases = limited(call_.member("phases"), 1, kMostPhases);
    outputs_ = limited(call_.member("outputs"), 1, kMostSteps);
    stored_.assign(outputs_.size(), false);
    places_.assign(outputs_.size(), Place{});
    program_.push_back(static_cast<uint32_t>(phases.size()));
    for (const JsonNode& phase : phases) {
      read_phase(phase);
    }
    if (std::find(stored_.begin(), stored_.end(), false) != stored_.end()) {
      call_.member("outputs").problem("outputs that are stored");
    }
    for (const Place& place : places_) {
      code_.push_back(place.at);
    }
    dispatch_.constants = std::move(program_);
    uint64_t lanes = kLeastLanes;
    while (lanes < kThreads && lanes < widest_) {
      lanes *= 2;
    }
    const uint64_t groups = (rows_ + kThreads / lanes - 1) / (kThreads / lanes);
    dispatch_.shader = Shader::kRows;
    dispatch_.kind = Kind::kRows;
    dispatch_.pushed = {static_cast<uint32_t>(rows_), static_cast<uint32_t>(lanes), static_cast<uint32_t>(begin)};
    dispatch_.groups[1] = static_cast<uint32_t>((groups + kMostGroups - 1) / kMostGroups);
    dispatch_.groups[0] = static_cast<uint32_t>((groups + dispatch_.groups[1] - 1) / dispatch_.groups[1]);
    return dispatch_;
  }

 private:
  static std::vector<JsonNode> limited(const JsonNode& node, size_t least, size_t most) {
    std::vector<JsonNode> items = node.items();
    if (items.size() < least || items.size() > most) {
      node.problem("a list of " + std::to_string(least) + " to " + std::to_string(most));
      items.clear();
    }
    return items;
  }

  int64_t most_words() const { return static_cast<int64_t>(words_); }

  void dims() {
    const std::vector<JsonNode> items = limited(call_.member("dims"), 1, kMostRank);
    code_.push_back(static_cast<uint32_t>(items.size()));
    rows_ = items.empty() ? 0 : 1;
    for (const JsonNode& item : items) {
      dims_.push_back(static_cast<uint64_t>(item.integer(1, std::max<int64_t>(most_words(), 1))));
      code_.push_back(static_cast<uint32_t>(dims_.back()));
      rows_ = size_product(rows_, dims_.back());
    }
    if (rows_ == 0 || rows_ > words_) {
      call_.member("dims").problem("sizes of as many rows as the pool has words, at most");
      rows_ = 1;
    }
  }

  void reads() {
    const JsonNode list = call_.member("reads");
    const std::vector<JsonNode> items = limited(list, 0, kReads);
    const std::vector<JsonNode> inputs = call_.member("inputs").items();
    if (inputs.size() != items.size()) {
      list.problem("one for each input");
      return;
    }
    std::vector<uint32_t> strides;
    code_.push_back(static_cast<uint32_t>(items.size()));
    program_.push_back(static_cast<uint32_t>(items.size()));
    for (size_t i = 0; i < items.size(); ++i) {
      const std::vector<JsonNode> numbers = items[i].items();
      if (numbers.size() != 2 + dims_.size()) {
        items[i].problem("a width, an offset and a stride for each dimension");
        return;
      }
      const auto width = static_cast<uint64_t>(numbers[0].integer(1, most_words()));
      const auto offset = static_cast<uint64_t>(numbers[1].integer(0, most_words()));
      const Place from = read_place(inputs[i], 0, words_);
      uint64_t end = size_sum(from.at, offset);
      const uint64_t begin = end;
      uint64_t apart = width;  // words, as rows that do not overlap have
      for (size_t d = 0; d < dims_.size(); ++d) {
        const auto stride = static_cast<uint64_t>(numbers[2 + d].integer(0, most_words()));
        end = size_sum(end, size_product(stride, dims_[d] - 1));
        apart = stride > 0 ? size_product(apart, dims_[d]) : apart;
        strides.push_back(static_cast<uint32_t>(stride));
      }
      end = size_sum(end, width);
      if (end > words_ * elements_of_word(from)) {
        items[i].problem("rows within the pool");
        return;
      }
      code_.push_back(static_cast<uint32_t>(begin));
      program_.insert(program_.end(), {static_cast<uint32_t>(width), from.is_half});
      dispatch_.has_halves |= from.is_half;
      dispatch_.reads.push_back(span_of({static_cast<uint32_t>(begin), from.is_half}, end - begin));
      dispatch_.work.bytes += bytes_of(from, std::min(apart, end - begin));
    }
    read_count_ = items.size();
    code_.insert(code_.end(), strides.begin(), strides.end());
  }

  void constants() {
    const std::vector<JsonNode> items = limited(call_.member("constants"), 0, kMostConstants);
    constant_count_ = items.size();
    program_.push_back(static_cast<uint32_t>(items.size()));
    for (const JsonNode& item : items) {
      program_.push_back(static_cast<uint32_t>(item.integer(0, UINT32_MAX)));
    }
  }

  void read_phase(const JsonNode& phase) {
    const auto width = static_cast<uint64_t>(phase.member("width").integer(1, most_words()));
    const std::vector<JsonNode> code = limited(phase.member("code"), 0, 6 * kMostSteps);
    const std::vector<JsonNode> results = limited(phase.member("results"), 1, kResults);
    const size_t steps = code.size() / 6;
    if (code.size() != 6 * steps) {
      phase.member("code").problem("six numbers an instruction");
      return;
    }
    const auto once = static_cast<uint32_t>(phase.member("once").integer(0, static_cast<int64_t>(steps)));
    widest_ = std::max(widest_, width);
    program_.insert(program_.end(), {static_cast<uint32_t>(width), once, static_cast<uint32_t>(steps),
                                     static_cast<uint32_t>(results.size())});
    written_.reset();
    for (size_t step = 0; step < steps; ++step) {
      count(step < once ? 1 : width, read_step(&code[6 * step]));
    }
    std::bitset<kRowReductions> reduced;
    for (const JsonNode& result : results) {
      count(width, read_result(result, width, reduced));
    }
    reduced_ |= reduced;  // later phases may read them
  }

  void count(uint64_t columns, bool is_operation) {
    dispatch_.work.flops += is_operation ? static_cast<double>(rows_) * static_cast<double>(columns) : 0;
  }

  // Read a step; return whether it is an operation, and not a read or a choice.
  bool read_step(const JsonNode* step) {
    const int64_t op = step[0].integer(0, kRowChoose);
    const int64_t dst = step[1].integer(0, kRowRegisters - 1);
    const size_t operands = row_operands(op);
    int64_t numbers[4] = {};
    for (size_t k = 0; k < 4; ++k) {
      if (op == kRowLoad) {
        numbers[k] = k == 0   ? step[2].integer(0, static_cast<int64_t>(read_count_) - 1)
                     : k == 1 ? step[3].integer(-most_words(), most_words())
                     : k == 2 ? step[4].integer(0, 1)
                              : 0;
      } else if (op == kRowChoose && k >= 2) {
        numbers[k] = step[2 + k].integer(-most_words(), most_words());
      } else if (k < operands) {
        numbers[k] = operand(step[2 + k]);
      }
    }
    if (op != kRowLoad && operands == 0) {
      step[0].problem("an instruction");
    }
    written_.set(static_cast<size_t>(dst));
    program_.push_back(static_cast<uint32_t>(op));
    program_.push_back(static_cast<uint32_t>(dst));
    for (const int64_t number : numbers) {
      program_.push_back(bits(number));
    }
    return op != kRowLoad && op != kRowChoose;
  }

  // A register that has a value, a constant, or what an earlier phase reduced.
  int64_t operand(const JsonNode& node) {
    const int64_t value = node.integer(0, kRowConstant + static_cast<int64_t>(kMostConstants));
    const bool known = value >= kRowConstant ? static_cast<size_t>(value - kRowConstant) < constant_count_
                       : value >= kRowReduced
                           ? value - kRowReduced < static_cast<int64_t>(kRowReductions) &&
                                 reduced_[static_cast<size_t>(value - kRowReduced)]
                           : value < static_cast<int64_t>(kRowRegisters) && written_[static_cast<size_t>(value)];
    if (!known) {
      node.problem("a register that was written, a constant or a reduction of an earlier phase");
      return 0;
    }
    return value;
  }

  // Read a result; return whether it is a reduction, and not a store.
  bool read_result(const JsonNode& result, uint64_t width, std::bitset<kRowReductions>& reduced) {
    const std::vector<JsonNode> parts = result.items();
    if (parts.size() != 3) {
      result.problem("a kind, an operand and a number");
      return false;
    }
    const std::string kind = parts[0].text();
    const uint32_t value = bits(operand(parts[1]));
    if (kind == "sum" || kind == "max") {
      const int64_t to = parts[2].integer(0, kRowReductions - 1);
      reduced.set(static_cast<size_t>(to));
      program_.insert(program_.end(), {kind == "sum" ? kRowSum : kRowMax, value, static_cast<uint32_t>(to)});
      return true;
    }
    const auto number = static_cast<size_t>(parts[2].integer(0, static_cast<int64_t>(outputs_.size()) - 1));
    if (kind != "store" || number >= outputs_.size() || stored_[number]) {
      result.problem("sum, max or store, the latter of each output once");
      return false;
    }
    stored_[number] = true;
    const uint64_t count = size_product(rows_, width);
    const Place to = read_place(outputs_[number], count, words_);
    dispatch_.has_halves |= to.is_half;
    dispatch_.writes.push_back(span_of(to, count));
    dispatch_.work.bytes += bytes_of(to, count);
    places_[number] = to;
    const uint32_t store = to.is_half ? kRowStoreHalf : kRowStore;
    program_.insert(program_.end(), {store, value, static_cast<uint32_t>(number)});
    return false;
  }

  const JsonNode& call_;
  uint64_t words_;
  std::vector<uint32_t>& code_;
  std::vector<uint32_t> program_;
  Dispatch dispatch_;
  uint64_t rows_ = 0;
  uint64_t widest_ = 1;
  std::vector<uint64_t> dims_;
  size_t read_count_ = 0;
  size_t constant_count_ = 0;
  std::vector<JsonNode> outputs_;
  std::vector<bool> stored_;
  std::vector<Place> places_;  // of outputs
  std::bitset<kRowRegisters> written_;
  std::bitset<kRowReductions> reduced_;
};

}  // namespace

size_t row_operands(int64_t op) {
  if ((op >= 0 && op <= 5) || (op >= 20 && op <= 25) || op == kRowChoose) {
    return 2;
  }
  return op >= 10 && op <= 19 ? 1 : op == 26 ? 3 : 0;
}

Dispatch read_row_call(const JsonNode& call, uint64_t words, std::vector<uint32_t>& code) {
  return RowReader(call, words, code).read();
}

}  // namespace vulkan
}  // namespace zoexport
