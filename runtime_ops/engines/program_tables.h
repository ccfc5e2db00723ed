// What ExecuTorch takes on trust in the tables of a program file.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
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

// Why no method of a verified program may run; empty where there is nothing. A tensor that has neither data in the file nor
// planned memory, and is no input or output, has no memory at all when an operator reads it; and an input that is data in
// the file would be written to where that is mapped for reading.
inline std::string program_problem(const uint8_t* program) {
  constexpr uint16_t kPlans = 1;
  constexpr uint16_t kValues = 2, kInputs = 3, kOutputs = 4;
  constexpr uint16_t kValueType = 0, kValue = 1;
  constexpr uint8_t kTensor = 5;
  constexpr uint16_t kData = 5, kMemory = 6, kMore = 9;
  constexpr uint16_t kLocation = 2;
  constexpr uint8_t kExternal = 1;  // data of another file; without one, the program is not loaded
  for (const FlatTable& plan : FlatTable::root(program).tables(kPlans)) {
    const std::vector<int32_t> inputs = plan.numbers(kInputs), outputs = plan.numbers(kOutputs);
    const std::vector<FlatTable> values = plan.tables(kValues);
    const auto marked = [&](const std::vector<int32_t>& indices) {
      std::vector<bool> found(values.size());
      for (const int32_t index : indices) {
        if (index >= 0 && static_cast<size_t>(index) < found.size()) {
          found[static_cast<size_t>(index)] = true;
        }
      }
      return found;
    };
    const std::vector<bool> is_input = marked(inputs), is_output = marked(outputs);
    for (size_t i = 0; i < values.size(); ++i) {
      const auto tensor = values[i].number<uint8_t>(kValueType) == kTensor ? values[i].table(kValue) : std::nullopt;
      if (!tensor || tensor->has(kMemory)) {
        continue;
      }
      const auto more = tensor->table(kMore);
      const bool external = more && more->number<uint8_t>(kLocation) == kExternal;
      if (tensor->number<uint32_t>(kData) != 0 || external) {
        if (is_input[i]) {
          return "value " + std::to_string(i) + ", an input that is a constant";
        }
      } else if (!is_input[i] && !is_output[i]) {
        return "value " + std::to_string(i) + ", a tensor without memory";
      }
    }
  }
  return {};
}

}  // namespace zoexport
