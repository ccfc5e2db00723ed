// Codes of row programs that must be refused, one case for each rule, and a search for codes that reach too far.
#include <cstdint>
#include <vector>

#include "check.h"
#include "kernels/row_program.h"
#include "row_programs.h"

using namespace rows;
using namespace zoexport::kernels;

namespace {

const char* refusal(const Program& p, const std::vector<int64_t>& code, const std::vector<size_t>& sizes) {
  RowProgram parsed;
  return parse(code, p, sizes, parsed);
}

bool refused(const Program& p, const std::vector<size_t>& sizes) { return refusal(p, p.code(), sizes) != nullptr; }

// x (2, 3, 8), scale (1) -> 2: x * scale, 3: sum, 4: half of x, 5: filled and put together.
Program small() {
  Program p;
  p.dims = {2, 3};
  p.inputs = {{8, 0, {24, 8}}, {1, 0, {0, 0}}};
  p.widths = {8, 1, 4, 8};
  p.outputs = {2, 3, 5};
  p.constants = {0.5};
  p.steps = {{RowOp::kMul, 2, 0, 1},
             {RowOp::kSum, 3, 2},
             {RowOp::kSlice, 4, 0, 0, 4},
             {RowOp::kFill, 5, -1},
             {RowOp::kPut, 5, 4, 0, 4}};
  return p;
}

void malformed_codes_are_refused() {
  const std::vector<size_t> sizes = {48, 1};
  CHECK(!refused(small(), sizes));
  const auto with = [&](auto change) {
    Program p = small();
    change(p);
    return refused(p, sizes);
  };
  const auto step = [&](size_t i, RowOp op, int64_t dst, int64_t a, int64_t b = 0, int64_t c = 0) {
    return with([&](Program& p) { p.steps[i] = {op, dst, a, b, c}; });
  };
  const size_t huge = size_t{1} << 62, negative = static_cast<size_t>(-1);
  // Tensors.
  CHECK(refused(small(), {47, 1}));
  CHECK(refused(small(), {48, 0}));
  CHECK(refused(small(), {48}));
  CHECK(refused(small(), {48, 1, 1}));
  CHECK(with([](Program& p) { p.inputs[0].offset = 1; }));
  CHECK(with([](Program& p) { p.inputs[0].strides[0] = 25; }));
  CHECK(with([](Program& p) { p.inputs[1].strides[1] = 1; }));
  CHECK(with([](Program& p) { p.inputs[0].width = 9, p.widths[0] = 9, p.widths[3] = 9; }));
  for (const size_t bad : {huge, negative}) {
    CHECK(with([&](Program& p) { p.inputs[0].offset = bad; }));
    CHECK(with([&](Program& p) { p.inputs[0].strides[0] = bad; }));
    CHECK(with([&](Program& p) { p.inputs[1].width = bad; }));
    CHECK(with([&](Program& p) { p.dims[0] = bad; }));
    CHECK(with([&](Program& p) { p.widths[1] = bad; }));
    CHECK(with([&](Program& p) { p.outputs[0] = bad; }));
  }
  // The iteration space and the registers.
  CHECK(with([](Program& p) { p.dims = {2, 0}; }));
  CHECK(with([](Program& p) { p.dims = {}; }));
  CHECK(with([](Program& p) {
    p.dims = {2, 3, 1, 1, 1, 1};
    p.inputs[0].strides.resize(6), p.inputs[1].strides.resize(6);
  }));
  CHECK(with([](Program& p) {
    p.dims = {size_t{1} << 47, size_t{1} << 47};
    p.inputs[0].strides = {0, 0};
  }));
  CHECK(with([](Program& p) { p.widths.resize(300, 1); }));
  CHECK(with([](Program& p) { p.widths[1] = 0; }));
  CHECK(with([](Program& p) { p.outputs = {}; }));
  CHECK(with([](Program& p) { p.outputs[0] = 6; }));
  CHECK(with([](Program& p) { p.widths.push_back(1), p.outputs.push_back(6); }));  // never written
  CHECK(with([](Program& p) { p.widths[0] = p.widths[3] = 9; }));
  // Instructions.
  for (const int64_t opcode : {-1, 6, 9, 27, 29, 32, 39, 43, 1000}) {
    CHECK(step(0, static_cast<RowOp>(opcode), 2, 0, 1));
  }
  CHECK(step(0, RowOp::kMul, 1, 0, 1));  // an input is read only
  CHECK(step(0, RowOp::kMul, 6, 0, 1));
  CHECK(step(0, RowOp::kMul, -1, 0, 1));
  CHECK(step(0, RowOp::kMul, 2, 6, 1));
  CHECK(step(0, RowOp::kMul, 2, 0, -2));
  CHECK(step(0, RowOp::kMul, 2, 0, INT64_MIN));
  CHECK(step(0, RowOp::kMul, 2, 0, 2));  // read before it is written
  CHECK(step(0, RowOp::kMul, 2, 1, 1));  // dst too wide
  CHECK(step(0, RowOp::kMul, 4, 0, 1));
  CHECK(step(0, RowOp::kSelect, 2, 0, 1, 6));
  CHECK(step(3, RowOp::kAdd, 5, 0, 4));  // widths 8 and 4
  CHECK(step(1, RowOp::kSum, 2, 0));
  CHECK(step(1, RowOp::kSum, 5, 0));
  CHECK(step(1, RowOp::kSum, 3, -1));
  CHECK(step(1, RowOp::kExp, 2, 0));  // written twice
  CHECK(step(2, RowOp::kSlice, 4, 0, 0, 5));
  CHECK(step(2, RowOp::kSlice, 4, 0, 0, -1));
  CHECK(step(2, RowOp::kSlice, 4, 0, 0, INT64_MAX));
  CHECK(step(2, RowOp::kSlice, 4, 1, 0, 0));
  CHECK(step(2, RowOp::kSlice, 4, -1, 0, 0));
  CHECK(step(3, RowOp::kFill, 5, 0));       // of a register that is no number
  CHECK(step(3, RowOp::kPut, 5, 4, 0, 1));  // leaves gaps
  CHECK(step(4, RowOp::kPut, 5, 4, 0, 5));
  CHECK(step(4, RowOp::kPut, 5, 4, 0, -1));
  CHECK(step(4, RowOp::kPut, 5, 4, 0, INT64_MAX));
  CHECK(step(4, RowOp::kPut, 5, -1, 0, 0));
  CHECK(step(4, RowOp::kPut, 5, 5, 0, 0));
  CHECK(step(4, RowOp::kFill, 5, -1));  // fills again
  CHECK(with([](Program& p) { p.steps.resize(1025, p.steps[4]); }));
  CHECK(!with([](Program& p) { p.steps.resize(1024, p.steps[4]); }));
  // 2^64 + 1 elements.
  Program many;
  many.dims = {274177};
  many.widths = {67280421310721};
  many.outputs = {0};
  many.constants = {1.0};
  many.steps = {{RowOp::kFill, 0, -1}};
  CHECK(refused(many, {}));
  many.widths = {7};
  CHECK(!refused(many, {}));
  // Scratch without bound.
  CHECK(with([](Program& p) {
    p.widths[0] = size_t{1} << 40, p.widths[3] = size_t{1} << 40;
    p.outputs = {3};
    p.steps = {{RowOp::kFill, 5, -1}, {RowOp::kSum, 3, 5}};
  }));
}

// Codes cut short are refused or mean something else; no number may lead a run out of its tensors.
void no_code_reaches_past_its_tensors() {
  const Program p = small();
  const std::vector<int64_t> code = p.code();
  for (size_t length = 0; length < code.size(); ++length) {
    CHECK(refusal(p, std::vector<int64_t>(code.begin(), code.begin() + static_cast<int64_t>(length)), {48, 1}) ||
          (code.size() - length) % 5 == 0);
  }
  const std::vector<float> x = noise(1, 48), scale = noise(2, 1);
  const float* const in[] = {x.data(), scale.data()};
  size_t ran = 0;
  for (size_t at = 0; at < code.size(); ++at) {
    for (const int64_t value : {-2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 24, 26, 30, 31, 40, 41, 42, 48, 255}) {
      std::vector<int64_t> changed = code;
      changed[at] = value;
      RowProgram parsed;
      if (parse(changed, p, {48, 1}, parsed) != nullptr || parsed.rows > 1000) {
        continue;
      }
      ++ran;
      Tensors results;
      std::vector<float*> out;
      for (const size_t width : parsed.outputs) {
        results.emplace_back(parsed.rows * width);
      }
      for (std::vector<float>& result : results) {
        out.push_back(result.data());
      }
      CHECK(run_row_program(parsed, in, out.data(), 0, parsed.pieces));
    }
  }
  CHECK(ran > code.size());
}

}  // namespace

int main() {
  malformed_codes_are_refused();
  no_code_reaches_past_its_tensors();
  return check::result();
}
