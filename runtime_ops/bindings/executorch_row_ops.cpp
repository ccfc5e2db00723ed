// zoexport::rows_1 .. rows_6: fused row programs. kernels/row_program.h has the format of their code.

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "../kernels/row_program.h"
#include "executorch_support.h"

namespace zoexport {
namespace {

using namespace ops;

constexpr size_t kMaxInputs = kernels::kRowMaxRegisters;
// Fewer elements than these are not worth another thread.
constexpr size_t kThreadElements = 16384;

void rows_out(KernelRuntimeContext& ctx, ArrayRef<Tensor> inputs, ArrayRef<int64_t> code, ArrayRef<double> constants,
              Span<EValue*> outs) {
  std::array<const float*, kMaxInputs> in;
  std::array<size_t, kMaxInputs> sizes;
  ZO_CHECK(ctx, inputs.size() <= kMaxInputs, , "there may be 256 inputs at most");
  for (size_t i = 0; i < inputs.size(); ++i) {
    ZO_CHECK(ctx, is_dense(inputs[i], ScalarType::Float) && has_memory(inputs[i]), , "inputs must be dense float32");
    in[i] = inputs[i].const_data_ptr<float>();
    sizes[i] = static_cast<size_t>(inputs[i].numel());
  }
  kernels::RowProgram program;
  const char* const broken = kernels::parse_row_program(code.data(), code.size(), constants.data(), constants.size(),
                                                        sizes.data(), inputs.size(), program);
  ZO_CHECK(ctx, broken == nullptr, , broken);
  ZO_CHECK(ctx, program.outputs.size() == outs.size(), , "code must have as many outputs as the operator");
  std::array<float*, kMaxInputs> out;
  for (size_t k = 0; k < outs.size(); ++k) {
    Tensor& tensor = outs[k]->toTensor();
    ZO_CHECK(
        ctx,
        is_dense(tensor, ScalarType::Float) && static_cast<size_t>(tensor.numel()) == program.rows * program.outputs[k],
        , "outputs must be dense float32 of as many elements as the program's rows have");
    out[k] = tensor.mutable_data_ptr<float>();
  }
  const size_t grain = std::max<size_t>(1, kThreadElements / program.chunk);
  std::atomic<bool> done{true};
  const bool ran = parallel(program.pieces, grain, [&](size_t begin, size_t end) {
    if (!kernels::run_row_program(program, in.data(), out.data(), begin, end)) {
      done = false;
    }
  });
  ET_KERNEL_CHECK(ctx, ran, Internal, );
  ET_KERNEL_CHECK(ctx, done, MemoryAllocationFailed, );
}

// Boxed by hand, as they take lists. The stack: inputs, code, constants, K outputs.
template <size_t K>
void rows_boxed(KernelRuntimeContext& ctx, Span<EValue*> stack) {
  ET_KERNEL_CHECK(ctx, stack.size() >= 3 + K, InvalidArgument, );
  auto inputs = stack[0]->tryToTensorList();
  auto code = stack[1]->tryToIntList();
  auto constants = stack[2]->tryToDoubleList();
  ZO_CHECK(ctx, inputs.ok() && code.ok() && constants.ok(), ,
           "inputs must be a list of tensors, code of ints, constants of floats");
  for (size_t k = 0; k < K; ++k) {
    ET_KERNEL_CHECK(ctx, Argument<Tensor>::fits(*stack[3 + k]), InvalidArgument, );
  }
  rows_out(ctx, *inputs, *code, *constants, Span<EValue*>(stack.data() + 3, K));
}

template <size_t... K>
bool register_all(std::index_sequence<K...>) {
  static const char* const names[] = {"zoexport::rows_1.out", "zoexport::rows_2.out", "zoexport::rows_3.out",
                                      "zoexport::rows_4.out", "zoexport::rows_5.out", "zoexport::rows_6.out"};
  const executorch::runtime::Kernel kernels[] = {executorch::runtime::Kernel(names[K], rows_boxed<K + 1>)...};
  return executorch::runtime::register_kernels({kernels, sizeof...(K)}) == Error::Ok;
}

const bool registered = register_all(std::make_index_sequence<6>());

}  // namespace
}  // namespace zoexport
