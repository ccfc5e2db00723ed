// ExecuTorch's pool of threads, for targets that run its programs: with one thread, an input does the same every time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fuzz.h"

// The wheel has this library but not its header.
namespace executorch::extension::threadpool {
class ThreadPool {
 public:
  size_t get_thread_count() const;
  bool _unsafe_reset_threadpool(uint32_t threads);
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool

namespace fuzz {

inline void use_one_thread() {
  auto* pool = executorch::extension::threadpool::get_threadpool();
  MUST(pool == nullptr || pool->get_thread_count() == 1 || pool->_unsafe_reset_threadpool(1));
}

}  // namespace fuzz
