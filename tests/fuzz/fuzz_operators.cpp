// The operators that a program file can call, with whatever arguments it names: each is refused, or reads and writes
// within its tensors. ExecuTorch's own library is as the wheel has it.
#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/kernel/kernel_runtime_context.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "fuzz.h"
#include "threads.h"

namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;
using executorch::runtime::EValue;

// Kinds of arguments: T a tensor, t one or none, i an integer, d a number, b a boolean, L a list of tensors, I of integers,
// D of numbers.
struct Operator {
  const char* name;
  const char* kinds;
};
constexpr Operator kOperators[] = {
    {"zoexport::zo_update.out", "TTTTTiT"},
    {"zoexport::zo_update_half.out", "TTTTTiT"},
    {"zoexport::zo_perturb.out", "TTTTiiT"},
    {"zoexport::zo_perturb_one.out", "TTTTTTiT"},
    {"zoexport::label_logprobs.out", "TTTT"},
    {"zoexport::label_gradient.out", "TTTTTT"},
    {"zoexport::linear_int4.out", "TTTtT"},
    {"zoexport::linear_int4_input_gradient.out", "TTTT"},
    {"zoexport::linear_int8.out", "TTTtT"},
    {"zoexport::linear_int8_input_gradient.out", "TTTT"},
    {"zoexport::routed_linear.out", "TTTbT"},
    {"zoexport::routed_linear_int4.out", "TTTTbT"},
    {"zoexport::routed_linear_int8.out", "TTTTbT"},
    {"zoexport::matmul.out", "TTbbT"},
    {"zoexport::sparse_add_mm.out", "TTTTTTTTiiiT"},
    {"zoexport::grid_linear_int4.out", "TTTtTTTTTiT"},
    {"zoexport::grid_linear_int8.out", "TTTtTTTTTiT"},
    {"zoexport::round_activations.out", "TTT"},
    {"zoexport::rotate_rows.out", "TT"},
    {"zoexport::embedding_int4.out", "TTTT"},
    {"zoexport::rows_1.out", "LIDT"},
    {"zoexport::rows_2.out", "LIDTT"},
    {"zoexport::rounded_linear.out", "TTTtT"},
    {"zoexport::cached_attention.out", "TTTTTTtddiT"},
    {"zoexport::linear_label_logprobs.out", "TTtddTTT"},
    {"zoexport::linear_label_logprobs_int4.out", "TTTtddTTT"},
    {"zoexport::rounded_linear_label_logprobs_int4.out", "TTTtddTTT"},
    {"zoexport::attention.out", "TTTtdbiTT"},
    {"zoexport::attention_gradient.out", "TTTtTTTdbiTTT"},
    {"zoexport::add_matmul.out", "TTTbbT"},
    {"zoexport::zo_update_signs.out", "TTTTTiT"},
    {"zoexport::zo_perturb_signs.out", "TTTTiiT"},
    {"zoexport::linear_int4_bf16.out", "TTTtT"},
    {"zoexport::linear_int4_bf16_input_gradient.out", "TTTT"},
    {"zoexport::linear_int8_bf16.out", "TTTtT"},
    {"zoexport::linear_int8_bf16_input_gradient.out", "TTTT"},
    {"zoexport::rounded_linears_2.out", "TTTtTTtTT"},
    {"zoexport::rounded_linears_3.out", "TTTtTTtTTtTTT"},
};
constexpr ScalarType kTypes[] = {ScalarType::Float, ScalarType::Long, ScalarType::Byte, ScalarType::BFloat16,
                                 ScalarType::Char,  ScalarType::Half, ScalarType::Int,  ScalarType::Bool};
constexpr SizesType kSizes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 64, 96, 128, 33, 2147483647};
constexpr int64_t kMostElements = 1 << 13;

struct FailedAssertion {};
[[noreturn]] void failed_assertion() { throw FailedAssertion(); }
void say_nothing(et_timestamp_t, et_pal_log_level_t, const char*, const char*, size_t, const char*, size_t) {}

// One tensor, and memory of exactly its bytes, so that what lies beside it is seen.
struct Place {
  std::vector<SizesType> sizes;
  std::vector<executorch::aten::DimOrderType> order;
  std::vector<executorch::aten::StridesType> strides;
  std::unique_ptr<TensorImpl> tensor;
};

class Call {
 public:
  explicit Call(fuzz::Numbers& numbers) : numbers_(numbers) {}

  bool add(char kind) {
    const uint8_t other = numbers_.byte();
    if (other >= 0xF8) {
      kind = "TtibLID0"[other - 0xF8];  // another kind than the operator takes
    }
    switch (kind) {
      case 't':
        if (numbers_.byte() % 2 == 0) {
          values_.emplace_back(std::make_unique<EValue>());
          return true;
        }
        [[fallthrough]];
      case 'T': {
        TensorImpl* made = tensor();
        if (made == nullptr) {
          return false;
        }
        values_.emplace_back(std::make_unique<EValue>(Tensor(made)));
        return true;
      }
      case 'i':
        values_.emplace_back(std::make_unique<EValue>(numbers_.number()));
        return true;
      case 'd':
        values_.emplace_back(std::make_unique<EValue>(static_cast<double>(numbers_.number()) / 16.0));
        return true;
      case 'b':
        values_.emplace_back(std::make_unique<EValue>(numbers_.byte() % 2 == 1));
        return true;
      case 'L': {
        const size_t count = numbers_.byte() % 5;
        for (size_t i = 0; i < count; ++i) {
          TensorImpl* made = tensor();
          if (made == nullptr) {
            return false;
          }
          of_list_.push_back(std::make_unique<EValue>(Tensor(made)));
        }
        return tensors(count);
      }
      case 'I': {
        const size_t count = numbers_.byte() % 64;
        for (size_t i = 0; i < count; ++i) {
          of_list_.push_back(std::make_unique<EValue>(numbers_.number()));
        }
        unpacked_.emplace_back(count + 1);
        integers_.push_back(std::make_unique<executorch::runtime::BoxedEvalueList<int64_t>>(
            last(count), unpacked_.back().data(), static_cast<int>(count)));
        values_.emplace_back(std::make_unique<EValue>(integers_.back().get()));
        return true;
      }
      case 'D': {
        doubles_.emplace_back(numbers_.byte() % 4, 0.75);
        lists_.push_back(
            std::make_unique<executorch::aten::ArrayRef<double>>(doubles_.back().data(), doubles_.back().size()));
        values_.emplace_back(std::make_unique<EValue>(lists_.back().get()));
        return true;
      }
      default:
        values_.emplace_back(std::make_unique<EValue>());
        return true;
    }
  }

  void run(executorch::runtime::OpFunction function, size_t given) {
    // Exactly these, so that an argument that is not there is seen.
    std::vector<EValue*> stack;
    for (size_t i = 0; i < std::min(given, values_.size()); ++i) {
      stack.push_back(values_[i].get());
    }
    stack.shrink_to_fit();
    executorch::runtime::KernelRuntimeContext context;
    function(context, executorch::runtime::Span<EValue*>(stack.data(), stack.size()));
  }

 private:
  // The last values of lists.
  EValue** last(size_t count) {
    pointers_.emplace_back(1);  // not null where the list is empty
    pointers_.back().clear();
    for (size_t i = of_list_.size() - count; i < of_list_.size(); ++i) {
      pointers_.back().push_back(of_list_[i].get());
    }
    return pointers_.back().data();
  }

  bool tensors(size_t count) {
    // As ExecuTorch has it: memory for tensors, made when the list is read.
    room_.push_back(std::make_unique<uint8_t[]>(std::max<size_t>(count, 1) * sizeof(Tensor)));
    tensor_lists_.push_back(std::make_unique<executorch::runtime::BoxedEvalueList<Tensor>>(
        last(count), reinterpret_cast<Tensor*>(room_.back().get()), static_cast<int>(count)));
    values_.emplace_back(std::make_unique<EValue>(tensor_lists_.back().get()));
    return true;
  }

  TensorImpl* tensor() {
    places_.push_back(std::make_unique<Place>());
    Place& place = *places_.back();
    const ScalarType type = kTypes[numbers_.byte() % std::size(kTypes)];
    const uint8_t form = numbers_.byte();
    const size_t rank = form % 16 % 6;
    for (size_t axis = 0; axis < rank; ++axis) {
      place.sizes.push_back(kSizes[numbers_.byte() % std::size(kSizes)]);
    }
    if (std::count(place.sizes.begin(), place.sizes.end(), 0) == 0) {
      int64_t elements = 1;
      for (const SizesType size : place.sizes) {
        elements *= size;
        if (elements > kMostElements) {
          return nullptr;
        }
      }
    }
    place.order.resize(rank);
    std::iota(place.order.begin(), place.order.end(), 0);
    if (form & 0x80) {
      std::reverse(place.order.begin(), place.order.end());
    }
    place.strides.resize(rank);
    uint32_t stride = 1;
    for (size_t i = rank; i-- > 0;) {
      place.strides[place.order[i]] = static_cast<executorch::aten::StridesType>(stride);
      stride *= static_cast<uint32_t>(std::max(place.sizes[place.order[i]], 1));
    }
    const auto dynamism = form & 0x40 ? executorch::aten::TensorShapeDynamism::DYNAMIC_BOUND
                                      : executorch::aten::TensorShapeDynamism::STATIC;
    place.tensor = std::make_unique<TensorImpl>(type, static_cast<ssize_t>(rank), place.sizes.data(), nullptr,
                                                place.order.data(), place.strides.data(), dynamism);
    place.tensor->set_data(memory(place.tensor->nbytes(), place.tensor->element_size()));
    return place.tensor.get();
  }

  // Memory of its own, or of another tensor, or none; and what is in it.
  void* memory(size_t bytes, size_t element) {
    const uint8_t form = numbers_.byte();
    if (form == 0xFF) {
      return nullptr;
    }
    if (form >= 0xE0 && !memory_.empty()) {
      auto& [shared, size] = memory_[form % memory_.size()];
      if (size >= bytes) {
        return shared.get();
      }
    }
    memory_.emplace_back(std::make_unique<uint8_t[]>(bytes), bytes);
    uint8_t* data = memory_.back().first.get();
    std::memset(data, 0, bytes);
    if (form % 4 == 0) {
      return data;
    }
    const int64_t number = numbers_.number();
    for (size_t i = 0; i < bytes / element; ++i) {
      const int64_t value = form % 4 == 1   ? number
                            : form % 4 == 2 ? static_cast<int64_t>(static_cast<uint64_t>(number) + i)
                                            : numbers_.number();
      if (element == 4 && form & 0x10) {
        const auto rounded = static_cast<float>(value) / 16.0f;
        std::memcpy(data + i * element, &rounded, element);
      } else {
        std::memcpy(data + i * element, &value, element);  // the least of its bytes
      }
    }
    return data;
  }

  fuzz::Numbers& numbers_;
  std::vector<std::unique_ptr<Place>> places_;
  std::vector<std::pair<std::unique_ptr<uint8_t[]>, size_t>> memory_;
  std::vector<std::vector<EValue*>> pointers_;
  std::vector<std::vector<int64_t>> unpacked_;
  std::vector<std::vector<double>> doubles_;
  std::vector<std::unique_ptr<uint8_t[]>> room_;
  std::vector<std::unique_ptr<executorch::runtime::BoxedEvalueList<int64_t>>> integers_;
  std::vector<std::unique_ptr<executorch::runtime::BoxedEvalueList<Tensor>>> tensor_lists_;
  std::vector<std::unique_ptr<executorch::aten::ArrayRef<double>>> lists_;
  std::vector<std::unique_ptr<EValue>> of_list_;
  std::vector<std::unique_ptr<EValue>> values_;  // end before what they point to
};

bool begin() {
  executorch::runtime::register_pal(executorch::runtime::PalImpl::create(nullptr, failed_assertion, nullptr, nullptr,
                                                                         say_nothing, nullptr, nullptr, __FILE__));
  executorch::runtime::runtime_init();
  fuzz::use_one_thread();
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool begun = begin();
  MUST(begun);
  fuzz::Numbers numbers(data, size);
  const Operator& chosen = kOperators[numbers.byte() % std::size(kOperators)];
  const auto function = executorch::runtime::get_op_function_from_registry(chosen.name);
  MUST(function.ok());
  const size_t count = std::strlen(chosen.kinds);
  const uint8_t missing = numbers.byte();
  Call call(numbers);
  for (size_t i = 0; i < count; ++i) {
    if (!call.add(chosen.kinds[i])) {
      return 0;
    }
  }
  bool asserted = false;
  try {
    call.run(*function, missing < 0xF0 ? count : missing % (count + 1));
  } catch (const FailedAssertion&) {
    asserted = true;
  }
  MUST(!asserted);
  return 0;
}
