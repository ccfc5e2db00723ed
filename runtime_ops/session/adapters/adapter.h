// A LoRA adapter to be written, in any format.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "session/manifest/llama_cpp.h"
#include "session/result.h"

namespace zoexport {

// Gives a matrix's values, row-major.
using MatrixValues = std::function<void(float* values)>;

// One adapted layer: y += x A B scale.
struct AdapterLayer {
  std::string module;       // its path in the Hugging Face model
  LlamaCppLayer llama_cpp;  // of a GGUF file alone
  uint64_t inputs = 0;
  uint64_t rank = 0;
  uint64_t outputs = 0;
  MatrixValues a;  // (inputs, rank)
  MatrixValues b;  // (rank, outputs)
};

// Why layers cannot be written: none, or sizes that no adapter has.
Status check_layers(const std::vector<AdapterLayer>& layers);

// A tensor of an adapter's file: the transpose of one of a layer's matrices.
struct AdapterTensor {
  std::string name;
  uint64_t rows = 0;
  uint64_t columns = 0;
  const MatrixValues* matrix = nullptr;
  std::vector<uint64_t> order;  // which row of the transpose each row is; empty: as they are

  uint64_t elements() const { return rows * columns; }
};

// By name, whose bytes a file sorts by; refused where two are the same, or one is no text.
Status sort_by_name(std::vector<AdapterTensor>& tensors);

// The values of one tensor after another, in the same memory.
class TensorReader {
 public:
  // (rows, columns), until the next call. Refused where some are not finite.
  Result<const std::vector<float>*> read(const AdapterTensor& tensor);

 private:
  std::vector<float> matrix_;
  std::vector<float> values_;
};

}  // namespace zoexport
