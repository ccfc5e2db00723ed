// Memory in which products keep packed operands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace zoexport {
namespace kernels {

constexpr size_t kLine = 64;  // bytes of a cache line

// Memory of one thread, kept for its next products: new pages would cost a hundredth of a product's time.
class Scratch {
 public:
  // Room for so many floats, or null. Lines are aligned, so that no vector of a panel lies in two.
  float* floats(size_t count) {
    if (count > size_) {
      size_ = 0;
      memory_.reset(new (std::nothrow) float[count + kLine / sizeof(float)]);
      if (memory_ == nullptr) {
        return nullptr;
      }
      size_ = count;
    }
    const size_t past = reinterpret_cast<uintptr_t>(memory_.get()) % kLine;
    return memory_.get() + (kLine - past) % kLine / sizeof(float);
  }

 private:
  std::unique_ptr<float[]> memory_;
  size_t size_ = 0;
};

}  // namespace kernels
}  // namespace zoexport
