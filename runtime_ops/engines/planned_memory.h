// The memory that ExecuTorch planned for the tensors of a method: enough for the largest call.
#pragma once

#include <executorch/runtime/core/hierarchical_allocator.h>
#include <executorch/runtime/executor/method_meta.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "session/storage/sizes.h"

namespace zoexport {

// Room that the programs of a session share, as they run one after another and keep nothing there. Left as the system
// gives it: what smaller calls do not reach takes no memory, while Module would fill it with zeros.
class PlannedArena {
 public:
  static constexpr size_t kAlignment = 64;

  // Total bytes of a method's buffers as stored in its file; UINT64_MAX if the sum does not fit.
  static uint64_t needed(const executorch::runtime::MethodMeta& meta) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
      bytes = size_sum(bytes, padded(buffer(meta, i)));
    }
    return bytes;
  }

  // Bytes of one buffer; UINT64_MAX if there is no such size.
  static uint64_t buffer(const executorch::runtime::MethodMeta& meta, size_t index) {
    const auto size = meta.memory_planned_buffer_size(index);
    return size.ok() && *size >= 0 ? static_cast<uint64_t>(*size) : UINT64_MAX;
  }

  static uint64_t padded(uint64_t bytes) {
    const uint64_t above = size_sum(bytes, kAlignment - 1);
    return above == UINT64_MAX ? above : above / kAlignment * kAlignment;
  }

  // Return at least `bytes`, no more than this machine has; null if there is not enough. Earlier memory stays in place:
  // loaded programs keep its addresses.
  uint8_t* take(size_t bytes) {
    if (blocks_.empty() || size_ < bytes) {
      blocks_.emplace_back(new (std::nothrow) uint8_t[bytes + kAlignment]);
      size_ = bytes;
    }
    if (blocks_.back() == nullptr) {
      blocks_.pop_back();
      size_ = 0;
      return nullptr;
    }
    void* place = blocks_.back().get();
    size_t space = size_ + kAlignment;
    return static_cast<uint8_t*>(std::align(kAlignment, size_, place, space));
  }

 private:
  std::vector<std::unique_ptr<uint8_t[]>> blocks_;  // the last is the largest
  size_t size_ = 0;                                 // of the last
};

// The buffers of one method within the arena.
class PlannedMemory {
 public:
  // Return false if there is not enough. The buffers together are no more than this machine has.
  bool place(const executorch::runtime::MethodMeta& meta, PlannedArena& arena) {
    uint8_t* next = arena.take(std::max<size_t>(PlannedArena::needed(meta), 1));
    if (next == nullptr) {
      return false;
    }
    for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
      const uint64_t size = PlannedArena::buffer(meta, i);
      spans_.emplace_back(next, size);
      next += PlannedArena::padded(size);
    }
    allocator_.emplace(executorch::runtime::Span<executorch::runtime::Span<uint8_t>>(spans_.data(), spans_.size()));
    return true;
  }

  executorch::runtime::HierarchicalAllocator* allocator() { return &*allocator_; }

 private:
  std::vector<executorch::runtime::Span<uint8_t>> spans_;
  std::optional<executorch::runtime::HierarchicalAllocator> allocator_;
};

}  // namespace zoexport
