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

namespace zoexport {

// Room that the programs of a session share, as they run one after another and keep nothing there. Left as the system
// gives it: what smaller calls do not reach takes no memory, while Module would fill it with zeros.
class PlannedArena {
 public:
  static constexpr size_t kAlignment = 64;

  // Bytes of all buffers of a method; nothing where they cannot be read.
  static std::optional<size_t> needed(const executorch::runtime::MethodMeta& meta) {
    size_t bytes = 0;
    for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
      const auto size = meta.memory_planned_buffer_size(i);
      if (!size.ok()) {
        return std::nullopt;
      }
      bytes += (static_cast<size_t>(*size) + kAlignment - 1) / kAlignment * kAlignment;
    }
    return bytes;
  }

  // At least `bytes`; null where there is not enough. What was given before stays where it is: a program that is loaded
  // knows its addresses.
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
  // False where there is not enough.
  bool place(const executorch::runtime::MethodMeta& meta, PlannedArena& arena) {
    const auto bytes = PlannedArena::needed(meta);
    uint8_t* next = bytes ? arena.take(std::max<size_t>(*bytes, 1)) : nullptr;
    if (next == nullptr) {
      return false;
    }
    for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
      const auto size = static_cast<size_t>(*meta.memory_planned_buffer_size(i));
      spans_.emplace_back(next, size);
      next += (size + PlannedArena::kAlignment - 1) / PlannedArena::kAlignment * PlannedArena::kAlignment;
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
