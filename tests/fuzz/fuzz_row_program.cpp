// A row program's code against its tensors: one that is accepted reads and writes within them.
#include <algorithm>
#include <memory>
#include <vector>

#include "fuzz.h"
#include "kernels/row_program.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace zoexport::kernels;
  fuzz::Numbers numbers(data, size);
  std::vector<size_t> sizes(numbers.byte() % 5);
  for (size_t& elements : sizes) {
    elements = size_t{numbers.byte()} * (numbers.byte() % 8);
  }
  const std::vector<double> constants(numbers.byte() % 4, 0.75);
  std::vector<int64_t> code;
  while (numbers.size() > 0) {
    code.push_back(numbers.number());
  }
  RowProgram program;
  const char* broken = parse_row_program(code.data(), code.size(), constants.data(), constants.size(), sizes.data(),
                                         sizes.size(), program);
  const size_t wide = std::max<size_t>(program.wide, 1);
  if (broken != nullptr || program.rows > 4096 || wide > 4096 || program.rows * wide > 65536) {
    return 0;
  }
  // Memory of exactly these sizes, so that a value beside it is seen.
  std::vector<std::unique_ptr<float[]>> tensors;
  std::vector<const float*> inputs;
  std::vector<float*> outputs;
  for (const size_t elements : sizes) {
    tensors.push_back(std::make_unique<float[]>(elements));
    std::fill_n(tensors.back().get(), elements, 0.5f);
    inputs.push_back(tensors.back().get());
  }
  for (const size_t width : program.outputs) {
    tensors.push_back(std::make_unique<float[]>(program.rows * width));
    outputs.push_back(tensors.back().get());
  }
  MUST(run_row_program(program, inputs.data(), outputs.data(), 0, program.pieces));
  return 0;
}
