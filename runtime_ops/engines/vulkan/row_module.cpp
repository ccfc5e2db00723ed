#include "engines/vulkan/row_module.h"

#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "engines/vulkan/row_call.h"
#include "engines/vulkan/shaders.h"

namespace zoexport {
namespace vulkan {
namespace {

// Opcodes of SPIR-V (the specification, section 3.42) that are read or written here.
enum Opcode : uint32_t {
  kName = 5,
  kTypeVoid = 19,
  kTypeInt = 21,
  kTypeFloat = 22,
  kTypePointer = 32,
  kConstant = 43,
  kFunction = 54,
  kFunctionEnd = 56,
  kFunctionCall = 57,
  kVariable = 59,
  kLoad = 61,
  kStore = 62,
  kTypeBool = 20,
  kIAdd = 128,
  kLoopMerge = 246,
  kLabel = 248,
  kBranch = 249,
  kBranchConditional = 250,
  kReturn = 253,
};
constexpr size_t kHeader = 5, kBound = 3;  // words; the one that says below what all ids are
constexpr uint32_t kStorageFunction = 7;

using Words = std::vector<uint32_t>;

void append(Words& words, Opcode op, const Words& operands) {
  words.push_back(static_cast<uint32_t>(operands.size() + 1) << 16 | op);
  words.insert(words.end(), operands.begin(), operands.end());
}

// What is known of the functions that a main is made of.
struct Parts {
  explicit Parts(const ShaderCode& code) : words(code.words, code.words + code.count) {
    bound = words[kBound];
    for (size_t at = kHeader; at < words.size(); at += words[at] >> 16) {
      const uint32_t* const operands = &words[at + 1];
      switch (words[at] & 0xFFFF) {
        case kName: {
          const std::string name = reinterpret_cast<const char*>(&operands[1]);
          names[name.substr(0, name.find('('))] = operands[0];
          break;
        }
        case kTypeVoid:
          type_void = operands[0];
          break;
        case kTypeBool:
          type_bool = operands[0];
          break;
        case kTypeInt:
          (operands[2] != 0 ? type_int : type_uint) = operands[0];
          break;
        case kTypeFloat:
          type_float = operands[1] == 32 ? operands[0] : type_float;
          break;
        case kTypePointer:
          if (operands[1] == kStorageFunction) {
            pointers[operands[2]] = operands[0];
          }
          break;
        case kFunction:
          functions = functions == 0 ? at : functions;
          if (operands[1] == names["main"]) {
            main = at;
          }
          break;
        case kFunctionEnd:
          if (main != 0 && main_end == 0) {
            main_end = at;
          }
          break;
        default:
          break;
      }
    }
  }

  Words words;
  uint32_t bound = 0;
  std::map<std::string, uint32_t> names;  // ids of functions, and of what else has a name
  std::map<uint32_t, uint32_t> pointers;  // to variables of a function, by the type that they point to
  uint32_t type_void = 0, type_bool = 0, type_int = 0, type_uint = 0, type_float = 0;
  size_t functions = 0;           // where the first begins
  size_t main = 0, main_end = 0;  // where it begins, and its last instruction does
};

class Writer {
 public:
  Writer(const Words& phases, Parts parts) : next_(phases.data()), parts_(std::move(parts)) {}

  Words write() {
    const size_t reads = *next_++;
    for (size_t i = 0; i < reads; ++i) {
      widths_.push_back(*next_++);
      are_halves_.push_back(*next_++);
    }
    const size_t constants = *next_++;
    for (size_t i = 0; i < constants; ++i) {
      constants_.push_back(constant(parts_.type_float, *next_++));
    }
    column_ = variable(parts_.type_int);
    const uint32_t lane = call("prepare", parts_.type_int, {});
    for (size_t i = 0; i < reads; ++i) {
      const uint32_t number = constant(parts_.type_uint, static_cast<uint32_t>(i));
      begins_.push_back(call("begin_of", parts_.type_uint, {number}));
    }
    const size_t phases = *next_++;
    for (size_t i = 0; i < phases; ++i) {
      write_phase(lane);
    }
    append(body_, kReturn, {});
    return assembled();
  }

 private:
  uint32_t fresh() { return parts_.bound++; }

  uint32_t constant(uint32_t type, uint32_t bits) {
    uint32_t& id = known_[{type, bits}];
    if (id == 0) {
      id = fresh();
      append(declared_, kConstant, {type, id, bits});
    }
    return id;
  }
  uint32_t number(uint32_t bits) { return constant(parts_.type_int, bits); }

  uint32_t variable(uint32_t type) {
    uint32_t& pointer = parts_.pointers[type];
    if (pointer == 0) {
      pointer = fresh();
      append(declared_, kTypePointer, {pointer, kStorageFunction, type});
    }
    const uint32_t id = fresh();
    append(variables_, kVariable, {pointer, id, kStorageFunction});
    return id;
  }

  uint32_t call(const std::string& function, uint32_t type, const Words& arguments) {
    const uint32_t id = fresh();
    Words operands = {type, id, parts_.names.at(function)};
    operands.insert(operands.end(), arguments.begin(), arguments.end());
    append(body_, kFunctionCall, operands);
    return id;
  }

  uint32_t load(uint32_t type, uint32_t from) {
    const uint32_t id = fresh();
    append(body_, kLoad, {type, id, from});
    return id;
  }

  uint32_t operand(uint32_t value) const {
    return value >= kRowConstant  ? constants_[value - kRowConstant]
           : value >= kRowReduced ? reduced_[value - kRowReduced]
                                  : registers_[value];
  }

  void write_step(const uint32_t* step, uint32_t column) {
    const uint32_t op = step[0], a = step[2], b = step[3], c = step[4], d = step[5];
    const uint32_t type = parts_.type_float;
    uint32_t made = 0;
    if (op == kRowLoad) {
      uint32_t place = number(b);
      if (c == 0) {
        place = fresh();
        append(body_, kIAdd, {parts_.type_int, place, column, number(b)});
      }
      made = call(are_halves_[a] != 0 ? "load_half_of" : "load_of", type, {begins_[a], place, number(widths_[a])});
    } else if (op == kRowChoose) {
      made = call("choose_of", type, {operand(a), operand(b), column, number(c), number(d)});
    } else {
      Words arguments;
      const uint32_t values[] = {a, b, c};
      for (size_t i = 0; i < row_operands(op); ++i) {
        arguments.push_back(operand(values[i]));
      }
      made = call("op_" + std::to_string(op), type, arguments);
    }
    registers_[step[1]] = made;
  }

  static bool is_store(uint32_t kind) { return kind == kRowStore || kind == kRowStoreHalf; }

  void write_phase(uint32_t lane) {
    const uint32_t width = next_[0], once = next_[1], steps = next_[2], results = next_[3];
    const uint32_t* const code = next_ + 4;
    const uint32_t* const result = code + size_t{6} * steps;
    next_ = result + size_t{3} * results;
    for (uint32_t i = 0; i < once; ++i) {
      write_step(code + size_t{6} * i, number(0));
    }
    Words sums;
    for (uint32_t k = 0; k < results; ++k) {
      const uint32_t kind = result[size_t{3} * k];
      sums.push_back(is_store(kind) ? 0 : variable(parts_.type_float));
      if (!is_store(kind)) {
        append(body_, kStore, {sums[k], constant(parts_.type_float, kind == kRowMax ? 0xFF800000u : 0u)});
      }
    }
    const uint32_t header = fresh(), test = fresh(), inside = fresh(), next = fresh(), after = fresh();
    append(body_, kStore, {column_, lane});
    append(body_, kBranch, {header});
    append(body_, kLabel, {header});
    append(body_, kLoopMerge, {after, next, 0});
    append(body_, kBranch, {test});
    append(body_, kLabel, {test});
    const uint32_t column = load(parts_.type_int, column_);
    const uint32_t goes_on = call("goes_on", parts_.type_bool, {column, number(width)});
    append(body_, kBranchConditional, {goes_on, inside, after});
    append(body_, kLabel, {inside});
    for (uint32_t i = once; i < steps; ++i) {
      write_step(code + size_t{6} * i, column);
    }
    for (uint32_t k = 0; k < results; ++k) {
      const uint32_t kind = result[size_t{3} * k], value = operand(result[size_t{3} * k + 1]),
                     to = result[size_t{3} * k + 2];
      if (is_store(kind)) {
        call(kind == kRowStoreHalf ? "store_half_of" : "store_of", parts_.type_void,
             {constant(parts_.type_uint, to), number(width), column, value});
      } else {
        const uint32_t before = load(parts_.type_float, sums[k]);
        append(body_, kStore, {sums[k], call(kind == kRowMax ? "op_4" : "op_0", parts_.type_float, {before, value})});
      }
    }
    append(body_, kBranch, {next});
    append(body_, kLabel, {next});
    append(body_, kStore, {column_, call("next_of", parts_.type_int, {column})});
    append(body_, kBranch, {header});
    append(body_, kLabel, {after});
    for (uint32_t k = 0; k < results; ++k) {
      const uint32_t kind = result[size_t{3} * k];
      if (!is_store(kind)) {
        const uint32_t own = load(parts_.type_float, sums[k]);
        reduced_[result[size_t{3} * k + 2]] =
            call(kind == kRowMax ? "greatest_of" : "total_of", parts_.type_float, {own});
      }
    }
  }

  // The parts, with what was declared before their functions, and the body of main in the place of its own.
  Words assembled() const {
    const Words& parts = parts_.words;
    const auto at = [&](size_t place) { return parts.begin() + static_cast<std::ptrdiff_t>(place); };
    Words made(parts.begin(), at(parts_.functions));
    made.insert(made.end(), declared_.begin(), declared_.end());
    made.insert(made.end(), at(parts_.functions), at(parts_.main));
    const size_t label = parts_.main + (parts[parts_.main] >> 16);
    made.insert(made.end(), at(parts_.main), at(label + (parts[label] >> 16)));
    made.insert(made.end(), variables_.begin(), variables_.end());
    made.insert(made.end(), body_.begin(), body_.end());
    made.insert(made.end(), at(parts_.main_end), parts.end());
    made[kBound] = parts_.bound;
    return made;
  }

  const uint32_t* next_;
  Parts parts_;
  Words declared_, variables_, body_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> known_;  // constants, by type and bits
  Words widths_, are_halves_, constants_, begins_;
  uint32_t column_ = 0;
  uint32_t registers_[kRowRegisters] = {};
  uint32_t reduced_[kRowReductions] = {};
};

}  // namespace

std::vector<uint32_t> row_module(const std::vector<uint32_t>& phases, bool has_halves) {
  return Writer(phases, Parts(shader_code(Shader::kRows, has_halves))).write();
}

}  // namespace vulkan
}  // namespace zoexport
