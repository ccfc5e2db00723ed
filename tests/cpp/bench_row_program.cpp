// Prints what row programs that occur in training move: bytes of their inputs and outputs a second, on one thread. The
// least time of many runs, as others may use the machine.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "kernels/row_program.h"
#include "row_programs.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRuns = 200;

void bench(const char* name, const rows::Program& p) {
  std::vector<size_t> sizes;
  rows::Tensors tensors;
  std::vector<const float*> in;
  size_t elements = 0;
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    sizes.push_back(rows::reach(p, p.inputs[i]));
    tensors.push_back(rows::noise(static_cast<uint32_t>(i + 1), sizes.back()));
    elements += sizes.back();
  }
  for (const std::vector<float>& tensor : tensors) {
    in.push_back(tensor.data());
  }
  const std::vector<int64_t> code = p.code();
  zoexport::kernels::RowProgram parsed;
  double parse = 1e30, least = 1e30;
  rows::Tensors results;
  std::vector<float*> out;
  for (int run = 0; run < kRuns; ++run) {
    Clock::time_point begin = Clock::now();
    const char* broken = rows::parse(code, p, sizes, parsed);
    parse = std::min(parse, std::chrono::duration<double>(Clock::now() - begin).count());
    if (broken != nullptr) {
      std::printf("%s: %s\n", name, broken);
      return;
    }
    while (results.size() < p.outputs.size()) {
      results.emplace_back(parsed.rows * parsed.outputs[results.size()]);
      out.push_back(results.back().data());
      elements += results.back().size();
    }
    begin = Clock::now();
    run_row_program(parsed, in.data(), out.data(), 0, parsed.pieces);
    least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::printf("%-40s %8.1f us %6.1f GB/s   parse %4.1f us\n", name, least * 1e6,
              static_cast<double>(elements * sizeof(float)) / least / 1e9, parse * 1e6);
}

}  // namespace

int main() {
  bench("SwiGLU backward, 256 x 4864", rows::swiglu_backward(256, 4864));
  bench("SwiGLU backward, 8 x 4864", rows::swiglu_backward(8, 4864));
  bench("RMSNorm, 256 x 576", rows::rms_norm(256, 576));
  bench("RMSNorm backward, 256 x 576", rows::rms_norm_backward(256, 576));
  bench("softmax, scale and mask, 9 x 256 x 256", rows::softmax(9, 256, 256));
  bench("rotary, permuted 256 x 9 x 64", rows::rotary(256, 9, 64));
  return 0;
}
