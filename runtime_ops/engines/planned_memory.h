// The memory that ExecuTorch planned for the tensors of a method: enough for the largest call.
#pragma once

#include <executorch/runtime/core/hierarchical_allocator.h>
#include <executorch/runtime/executor/method_meta.h>

#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <vector>

namespace zoexport {

// Left as the system gives it: what smaller calls do not reach takes no memory, while Module would fill it with zeros.
class PlannedMemory {
 public:
  // False where there is not enough.
  bool allocate(const executorch::runtime::MethodMeta& meta) {
    for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
      const auto size = meta.memory_planned_buffer_size(i);
      if (!size.ok()) {
        return false;
      }
      const auto bytes = static_cast<size_t>(*size);
      buffers_.emplace_back(new (std::nothrow) uint8_t[bytes]);
      if (buffers_.back() == nullptr) {
        return false;
      }
      spans_.emplace_back(buffers_.back().get(), bytes);
    }
    allocator_.emplace(executorch::runtime::Span<executorch::runtime::Span<uint8_t>>(spans_.data(), spans_.size()));
    return true;
  }

  executorch::runtime::HierarchicalAllocator* allocator() { return &*allocator_; }

 private:
  std::vector<std::unique_ptr<uint8_t[]>> buffers_;
  std::vector<executorch::runtime::Span<uint8_t>> spans_;
  std::optional<executorch::runtime::HierarchicalAllocator> allocator_;
};

}  // namespace zoexport
