// The call `rows` of a program file: a row program in phases, checked.
#pragma once

#include "engines/vulkan/program_file.h"
#include "session/storage/json_reader.h"

namespace zoexport {
namespace vulkan {

inline constexpr size_t kRowRegisters = 40, kRowReductions = 16;
// Instructions that kernels/row_program.h does not have, and what is added to operands that are no registers: the number of a
// constant, or of a reduction.
inline constexpr uint32_t kRowLoad = 50, kRowChoose = 51;
inline constexpr uint32_t kRowConstant = uint32_t{1} << 30, kRowReduced = uint32_t{1} << 29;
// Kinds of results.
inline constexpr uint32_t kRowStore = 0, kRowSum = 1, kRowMax = 2, kRowStoreHalf = 3;

// Number of operands of an instruction with this opcode; 0 for kRowLoad and unknown opcodes.
size_t row_operands(int64_t op);

// Read a dispatch of the call. Its `constants` are the program: the number of reads, each with its width and whether it
// is fp16; the number of constants and their bits; the number of phases, each with its width, how many of its
// instructions run once, how many there are, and results; the instructions (op, dst, a, b, c, d) and the results (kind,
// operand, target). `code` gets what depends on places: rank, dims, the number of reads, where each begins, their
// strides, where each output begins. `words` are those of the pool. Problems go to the node's document.
Dispatch read_row_call(const JsonNode& call, uint64_t words, std::vector<uint32_t>& code);

}  // namespace vulkan
}  // namespace zoexport
