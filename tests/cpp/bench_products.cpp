// Prints the GFLOP/s of one thread in each product and variant that runs here. The best of many runs, as others may use
// the machine. A name as the first argument runs that variant alone.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/attention.h"
#include "kernels/product_variants.h"
#include "kernels/products.h"
#include "kernels/rounded.h"

namespace {

using namespace zoexport::kernels;
using Clock = std::chrono::steady_clock;

constexpr double kSeconds = 0.25;  // for each number

// Of so many multiply-adds a run.
template <typename Run>
double gigaflops(size_t multiply_adds, const Run& run) {
  double least = 1e30;
  const Clock::time_point start = Clock::now();
  do {
    const Clock::time_point begin = Clock::now();
    run();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count());
  } while (std::chrono::duration<double>(Clock::now() - start).count() < kSeconds);
  return 2e-9 * static_cast<double>(multiply_adds) / least;
}

// A line with a number for each variant, of `run` with it.
template <typename Run>
void print(const char* name, size_t batches, size_t rows, size_t depth, size_t columns, const char* only,
           const Run& run) {
  std::printf("%-31s %4zu x %5zu x %5zu", name, rows, depth, columns);
  for (const ProductVariant& variant : product_variants()) {
    if (variant.runs_here && (only == nullptr || std::strcmp(only, variant.name) == 0)) {
      std::printf("  %s %6.1f", variant.name, gigaflops(batches * rows * depth * columns, [&] { run(variant); }));
    }
  }
  std::printf("\n");
}

void print(const char* name, const Product& product, const char* only) {
  print(name, product.batches, product.rows, product.depth, product.columns, only, [&](const ProductVariant& variant) {
    run_tasks(product, 0, tasks_of(product, *variant.kernels).count, *variant.kernels);
  });
}

// Of numbers that are rounded to bfloat16.
void print_bf16(const char* name, Product product, const char* only) {
  product.bf16 = true;
  print(name, product, only);
}

// With the rounding of its rows.
void print_rounded(const float* x, size_t rows, const Int4Matrix& weight, float* out, const char* only) {
  std::vector<float> memory(rounded_floats(rows, weight.K));
  const RoundedRows rounded = rounded_in(memory.data(), rows, weight.K);
  print("rounded_linear", 1, rows, weight.K, weight.N, only, [&](const ProductVariant& variant) {
    const RoundedLinear product{rounded, weight, nullptr, out};
    run_tasks(RoundRows{x, rounded}, 0, rows);
    run_tasks(product, 0, tasks_of(product, *variant.rounded).count, *variant.rounded);
  });
}

// Causal attention of nine heads in groups of three, and its gradient; multiply-adds of what queries see.
void print_attention(const float* x, size_t tokens, float* memory, const char* only) {
  constexpr size_t kHeads = 9, kGroups = 3, kWidth = 64;
  const size_t size = tokens * kHeads * kWidth, seen = tokens * (tokens + 1) / 2;
  const Attention attention{x, x, x, nullptr, 1, tokens, kHeads, kGroups, kWidth, kWidth, 0.125f, true, 0};
  float* lse = memory + size;
  float* dq = lse + kHeads * tokens;
  const AttentionGradient gradient{memory, lse, x, dq, dq + size, dq + 2 * size};
  print("attention", kHeads, seen, 2, kWidth, only, [&](const ProductVariant& variant) {
    run_attention(attention, {memory, lse}, 0, attention_tasks(attention).count, *variant.kernels);
  });
  print("attention_gradient", kHeads, seen, 5, kWidth, only, [&](const ProductVariant& variant) {
    for (size_t round = 0; round < gradient_rounds(attention); ++round) {
      run_gradient(attention, gradient, round, 0, gradient_tasks(attention, round).count, *variant.kernels);
    }
  });
}

}  // namespace

int main(int count, char** arguments) {
  const char* only = count > 1 ? arguments[1] : nullptr;
  constexpr size_t kMost = 49152 * 576;
  const std::vector<uint8_t> codes(kMost, 0x5A);
  const std::vector<uint16_t> scales(kMost / 32, 0x3C00);
  const std::vector<float> row_scales(49152, 0.01f);
  const std::vector<float> x(64 * 49152, 0.5f), w(1536 * 576, 0.25f);
  std::vector<float> out(64 * 49152);
  struct Layer {
    size_t T, N, K;
  };
  // Layers and head of SmolLM2-135M.
  for (const Layer& layer :
       {Layer{256, 1536, 576}, {256, 576, 1536}, {256, 576, 576}, {32, 49152, 576}, {64, 49152, 576}, {1, 1536, 576}}) {
    const Int4Matrix int4{codes.data(), scales.data(), layer.N, layer.K, 32};
    const Int8Matrix int8{reinterpret_cast<const int8_t*>(codes.data()), row_scales.data(), layer.N, layer.K};
    print("linear_int4", linear(x.data(), layer.T, int4, nullptr, out.data()), only);
    print_bf16("linear_int4_bf16", linear(x.data(), layer.T, int4, nullptr, out.data()), only);
    print_rounded(x.data(), layer.T, int4, out.data(), only);
    print("linear_int4_input_gradient", linear_input_gradient(x.data(), layer.T, int4, out.data()), only);
    print_bf16("linear_int4_bf16_input_gradient", linear_input_gradient(x.data(), layer.T, int4, out.data()), only);
    print("linear_int8", linear(x.data(), layer.T, int8, nullptr, out.data()), only);
    print_bf16("linear_int8_bf16", linear(x.data(), layer.T, int8, nullptr, out.data()), only);
    print("linear_int8_input_gradient", linear_input_gradient(x.data(), layer.T, int8, out.data()), only);
    print_bf16("linear_int8_bf16_input_gradient", linear_input_gradient(x.data(), layer.T, int8, out.data()), only);
  }
  struct Plain {
    size_t batches, rows, depth, columns;
    bool a_transposed, b_transposed;
  };
  // Low-rank products and their gradients, frozen float32 weights, attention.
  for (const Plain& p : {Plain{1, 256, 576, 16, false, false},
                         {1, 256, 16, 1536, false, false},
                         {1, 16, 256, 1536, true, false},
                         {1, 576, 256, 16, true, false},
                         {1, 256, 1536, 16, false, true},
                         {1, 256, 576, 1536, false, true},
                         {1, 256, 1536, 576, false, false},
                         {9, 256, 64, 256, false, true},
                         {9, 256, 256, 64, false, false},
                         {9, 256, 256, 64, true, false}}) {
    print(p.a_transposed ? (p.b_transposed ? "matmul a^T b^T" : "matmul a^T b")
                         : (p.b_transposed ? "matmul a b^T" : "matmul a b"),
          matmul(x.data(), w.data(), p.batches, p.rows, p.columns, p.depth, p.a_transposed, p.b_transposed, out.data()),
          only);
  }
  for (const size_t tokens : {128, 256, 512, 1024, 2048}) {
    print_attention(x.data(), tokens, out.data(), only);
  }
  return 0;
}
