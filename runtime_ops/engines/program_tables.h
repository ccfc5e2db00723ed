// Checks of what ExecuTorch takes on trust in the tables of a program file.
#pragma once

#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace zoexport {

// A table of a flatbuffer whose offsets a verifier has looked at. Fields have the numbers of ExecuTorch's program.fbs; a union
// has two, its type and its value.
class FlatTable {
 public:
  static FlatTable root(const uint8_t* buffer) { return FlatTable(buffer + read<uint32_t>(buffer)); }

  template <typename T>
  T number(uint16_t field) const {
    const uint8_t* place = find(field);
    return place == nullptr ? T{} : read<T>(place);
  }
  bool has(uint16_t field) const { return find(field) != nullptr; }
  std::optional<FlatTable> table(uint16_t field) const {
    const uint8_t* place = find(field);
    return place == nullptr ? std::nullopt : std::optional<FlatTable>(FlatTable(place + read<uint32_t>(place)));
  }
  std::string text(uint16_t field) const {
    const uint8_t* place = find(field);
    if (place == nullptr) {
      return {};
    }
    place += read<uint32_t>(place);
    return std::string(reinterpret_cast<const char*>(place) + 4, read<uint32_t>(place));
  }
  std::vector<int32_t> numbers(uint16_t field) const {
    std::vector<int32_t> found;
    each(field, [&](const uint8_t* place) { found.push_back(read<int32_t>(place)); });
    return found;
  }
  std::vector<FlatTable> tables(uint16_t field) const {
    std::vector<FlatTable> found;
    each(field, [&](const uint8_t* place) { found.push_back(FlatTable(place + read<uint32_t>(place))); });
    return found;
  }

 private:
  explicit FlatTable(const uint8_t* place) : place_(place) {}

  template <typename T>
  static T read(const uint8_t* place) {
    T value;
    std::memcpy(&value, place, sizeof(value));
    return value;
  }
  const uint8_t* find(uint16_t field) const {
    const uint8_t* fields = place_ - read<int32_t>(place_);
    const size_t at = 4 + 2 * size_t{field};
    const auto offset = at < read<uint16_t>(fields) ? read<uint16_t>(fields + at) : uint16_t{0};
    return offset == 0 ? nullptr : place_ + offset;
  }
  // Elements of four bytes.
  template <typename Body>
  void each(uint16_t field, const Body& body) const {
    const uint8_t* place = find(field);
    if (place == nullptr) {
      return;
    }
    place += read<uint32_t>(place);
    const auto count = read<uint32_t>(place);
    for (uint32_t i = 0; i < count; ++i) {
      body(place + 4 + 4 * size_t{i});
    }
  }

  const uint8_t* place_;
};

// Tracks which tensors of a method have memory when its instructions reach them, and where that lies.
class TensorMemory {
 public:
  explicit TensorMemory(const FlatTable& plan)
      : plan_(plan), values_(plan.tables(kValues)), has_(values_.size(), true), planned_(values_.size()) {
    const std::vector<bool> is_input = marked(plan.numbers(kInputs)), is_output = marked(plan.numbers(kOutputs));
    for (size_t i = 0; i < values_.size() && problem_.empty(); ++i) {
      const auto tensor = values_[i].number<uint8_t>(kValueType) == kTensor ? values_[i].table(kValue) : std::nullopt;
      if (!tensor) {
        continue;
      }
      if (const auto memory = tensor->table(kMemory)) {
        planned_[i] = place_of(*tensor, *memory);
        continue;
      }
      const auto more = tensor->table(kMore);
      const bool external = more && more->number<uint8_t>(kLocation) == kExternal;
      const bool constant = tensor->number<uint32_t>(kData) != 0 || external;
      if (constant && is_input[i]) {
        problem_ = "value " + std::to_string(i) + ", an input that is a constant";
      }
      has_[i] = constant || is_input[i] || is_output[i];
    }
  }

  // What is wrong, if anything is; otherwise the instructions are looked at.
  std::string problem() {
    for (const FlatTable& one : plan_.tables(kOperators)) {
      operators_.push_back(one.text(0));
    }
    for (const FlatTable& chain : plan_.tables(kChains)) {
      for (const FlatTable& instruction : chain.tables(kInstructions)) {
        look_at(instruction);
      }
    }
    return problem_;
  }

 private:
  static constexpr uint16_t kValues = 2, kInputs = 3, kOutputs = 4, kChains = 5, kOperators = 6;
  static constexpr uint16_t kValueType = 0, kValue = 1;
  static constexpr uint8_t kTensor = 5, kTensors = 10, kOptionalTensors = 11;
  static constexpr uint16_t kType = 0, kSizes = 2, kData = 5, kMemory = 6, kMore = 9;  // of a tensor
  static constexpr uint16_t kLocation = 2;
  static constexpr uint8_t kExternal = 1;  // data of another file; without one, the program is not loaded
  static constexpr uint16_t kInstructions = 2, kInstructionType = 0, kInstruction = 1;
  static constexpr uint8_t kKernelCall = 1, kDelegateCall = 2, kMove = 3, kJump = 4, kFree = 5;
  static constexpr uint16_t kArguments = 1;

  // Bytes of a buffer of the plan, from begin up to end.
  struct Place {
    uint32_t buffer;
    uint64_t begin, end;
  };

  // Sizes that are no sizes, and types that are none, ExecuTorch refuses itself.
  static Place place_of(const FlatTable& tensor, const FlatTable& memory) {
    const auto type = static_cast<executorch::aten::ScalarType>(tensor.number<int8_t>(kType));
    uint64_t bytes = executorch::runtime::isValid(type) ? executorch::runtime::elementSize(type) : 0;
    for (const int32_t size : tensor.numbers(kSizes)) {
      if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(std::max(size, 0)), &bytes)) {
        bytes = UINT64_MAX;
      }
    }
    const uint64_t begin = memory.number<uint32_t>(1) | (uint64_t{memory.number<uint32_t>(2)} << 32U);
    return {memory.number<uint32_t>(0), begin, begin + std::min(bytes, UINT64_MAX - begin)};
  }

  std::vector<bool> marked(const std::vector<int32_t>& indices) const {
    std::vector<bool> found(values_.size());
    for (const int32_t index : indices) {
      if (index >= 0 && static_cast<size_t>(index) < found.size()) {
        found[static_cast<size_t>(index)] = true;
      }
    }
    return found;
  }

  void look_at(const FlatTable& instruction) {
    const auto kind = instruction.number<uint8_t>(kInstructionType);
    const auto call = instruction.table(kInstruction);
    reader_.clear();
    if (!call) {
      return;
    }
    if (kind == kJump) {
      // The instructions that a jump skips are not known, so every tensor needs memory of its own.
      for (size_t i = 0; i < has_.size(); ++i) {
        need(static_cast<int32_t>(i));
      }
    } else if (kind == kMove) {
      need(call->number<int32_t>(0));
    } else if (kind == kFree) {
      set(call->number<int32_t>(0), false);
    }
    if (kind != kKernelCall && kind != kDelegateCall) {
      return;
    }
    reader_ = kind == kKernelCall ? operator_of(call->number<int32_t>(0)) : "a delegate";
    std::vector<int32_t> read = call->numbers(kArguments);
    const int32_t view = kind == kKernelCall ? view_of(*call, read) : -1;
    if (view >= 0) {
      read.resize(1);
    }
    for (const int32_t index : read) {
      need(index);
    }
    if (view >= 0) {
      make_view(view, read[0]);
    } else {
      keep_apart(read);
    }
  }

  void make_view(int32_t view, int32_t of) {
    set(view, true);
    if (is_value(view) && is_value(of)) {
      planned_[static_cast<size_t>(view)] = planned_[static_cast<size_t>(of)];
    }
  }

  // Operators copy between their tensors, which may be the same memory, but do not lie across each other.
  void keep_apart(const std::vector<int32_t>& arguments) {
    std::vector<std::tuple<uint32_t, uint64_t, uint64_t, int32_t>> places;
    const auto add = [&](int32_t index) {
      if (const auto& place = planned_[static_cast<size_t>(index)]; place && place->begin < place->end) {
        places.emplace_back(place->buffer, place->begin, place->end, index);
      }
    };
    for (const int32_t index : arguments) {
      if (!is_value(index)) {
        continue;
      }
      if (const auto list = list_of(static_cast<size_t>(index))) {
        for (const int32_t item : list->numbers(0)) {
          if (is_value(item)) {
            add(item);
          }
        }
      } else {
        add(index);
      }
    }
    std::sort(places.begin(), places.end());
    // Compare each tensor with the one that ends last of those that begin before it.
    for (size_t i = 1, last = 0; i < places.size() && problem_.empty(); ++i) {
      const auto& [buffer, begin, end, index] = places[i];
      const auto& [before, its_begin, its_end, other] = places[last];
      if (buffer == before && begin != its_begin && begin < its_end) {
        problem_ = "values " + std::to_string(other) + " and " + std::to_string(index) +
                   ", tensors of one instruction whose planned memory overlaps";
      }
      if (buffer != before || end > its_end) {
        last = i;
      }
    }
  }

  // The result of a view, which gets the memory of what is viewed; below 0 of other operators.
  int32_t view_of(const FlatTable& call, const std::vector<int32_t>& arguments) const {
    const auto number = call.number<int32_t>(0);
    return operator_of(number) == "executorch_prim::et_view" && arguments.size() >= 3 ? arguments[2] : -1;
  }

  std::string operator_of(int32_t number) const {
    return number >= 0 && static_cast<size_t>(number) < operators_.size() ? operators_[static_cast<size_t>(number)]
                                                                          : "";
  }

  bool is_value(int32_t index) const { return index >= 0 && static_cast<size_t>(index) < values_.size(); }

  // The table of a list of tensors.
  std::optional<FlatTable> list_of(size_t value) const {
    const auto type = values_[value].number<uint8_t>(kValueType);
    return type == kTensors || type == kOptionalTensors ? values_[value].table(kValue) : std::nullopt;
  }

  void set(int32_t index, bool has) {
    if (is_value(index)) {
      has_[static_cast<size_t>(index)] = has;
    }
  }

  void need(int32_t index) {
    if (!problem_.empty() || !is_value(index)) {
      return;
    }
    const auto place = static_cast<size_t>(index);
    if (const auto list = list_of(place)) {
      for (const int32_t item : list->numbers(0)) {
        if (is_value(item) && !has_[static_cast<size_t>(item)]) {
          need(item);
        }
      }
    } else if (!has_[place]) {
      problem_ = "value " + std::to_string(index) + ", a tensor without memory" +
                 (reader_.empty() ? "" : ", which " + reader_ + " reads");
    }
  }

  const FlatTable& plan_;
  std::vector<FlatTable> values_;
  std::vector<bool> has_;
  std::vector<std::optional<Place>> planned_;  // of those that the plan places, and of their views
  std::vector<std::string> operators_;
  std::string reader_;  // the operator of the instruction that is looked at; empty: none
  std::string problem_;
};

// Return why no method of a verified program may run; empty if nothing prevents it. A tensor has no memory when an
// operator reads it if it has neither data in the file nor planned memory and is no input, output or view of one that
// has. An input that is data in the file would be written over it, and the next method reads that. Operators copy from
// one tensor to another as if these did not overlap.
inline std::string program_problem(const uint8_t* program) {
  constexpr uint16_t kPlans = 1;
  for (const FlatTable& plan : FlatTable::root(program).tables(kPlans)) {
    const std::string problem = TensorMemory(plan).problem();
    if (!problem.empty()) {
      return "in method " + plan.text(0) + " " + problem;
    }
  }
  return {};
}

}  // namespace zoexport
