// Rounding of rows to 8 bits against its rule, and every variant of their products with INT4 weights that this processor can
// run against sums in double precision. Results do not depend on how tasks are dealt, nor on the other rows; variants with
// a fused multiply-add give the same bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "kernel_results.h"
#include "kernels/rounded.h"
#include "rng/normal.h"

using namespace zoexport::kernels;
using check::noise;
using zoexport::rng::Stream;
using zoexport::rng::words;

namespace {

struct Variant {
  std::string name;
  const RoundedKernels* kernels;
};

std::vector<Variant> variants() {
  std::vector<Variant> found;
  for (const ProductVariant& variant : product_variants()) {
    if (variant.runs_here) {
      found.push_back({variant.name, variant.rounded});
    }
  }
#if defined(__aarch64__)
  found.push_back({"neon without its dot product", &rounded_neon});
  if (fastest_products().rounded == &rounded_i8mm) {
    found.push_back({"neon's dot product", &rounded_dotprod});
  }
#endif
  return found;
}

// Rows and the memory that they lie in.
struct Rounded {
  std::vector<float> memory;
  RoundedRows rows;

  Rounded(const std::vector<float>& x, size_t T, size_t K, size_t step) : memory(rounded_floats(T, K)) {
    rows = rounded_in(memory.data(), T, K);
    for (size_t begin = 0; begin < T; begin += step) {
      CHECK(run_tasks(RoundRows{x.data(), rows}, begin, std::min(T, begin + step)));
    }
  }
  // q of element k: of each eight the even ones come first.
  int q(size_t t, size_t k) const { return rows.codes[t * rows.K + k / 8 * 8 + (k % 2) * 4 + k % 8 / 2]; }
  float scale(size_t t, size_t k) const { return rows.scales[k / 32 * rows.rows + t]; }
};

void rounding(size_t T, size_t K) {
  std::vector<float> x = noise(1, T * K);
  for (size_t k = 0; k < 32 && T > 0; ++k) {
    x[k] *= 1e-32f;  // too small for a scale
  }
  const Rounded rounded(x, T, K, 1), whole(x, T, K, SIZE_MAX / 2);
  CHECK(rounded.memory.empty() ||
        std::memcmp(rounded.memory.data(), whole.memory.data(), rounded.memory.size() * sizeof(float)) == 0);
  for (size_t t = 0; t < T; ++t) {
    for (size_t g = 0; g < K; g += 32) {
      float greatest = 0;
      for (size_t k = g; k < g + 32; ++k) {
        greatest = std::max(greatest, std::abs(x[t * K + k]));
      }
      const bool zero = greatest < 1e-30f;
      int sum = 0;
      for (size_t k = g; k < g + 32; ++k) {
        const float moved = zero ? 0.0f : x[t * K + k] * (127.0f / greatest);
        CHECK(rounded.q(t, k) == static_cast<int>(std::nearbyint(moved)));
        sum += rounded.q(t, k);
      }
      CHECK(rounded.scale(t, g) == (zero ? 0.0f : greatest / 127.0f));
      CHECK(rounded.rows.offsets[g / 32 * T + t] == -8 * sum);
    }
  }
}

void what_is_not_finite() {
  for (const float odd : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x = noise(2, 64);
    x[40] = odd;
    const Rounded rounded(x, 1, 64, 1);
    CHECK(std::isfinite(rounded.scale(0, 0)) && std::isnan(rounded.scale(0, 32)));
    CHECK(rounded.q(0, 40) == 0 && rounded.q(0, 41) == 0);
  }
}

std::vector<float> result_of(RoundedLinear product, const RoundedKernels& kernels, size_t step) {
  return check::guarded(product.x.rows * product.weight.N, [&](float* y) {
    product.y = y;
    check::in_steps(tasks_of(product, kernels).count, step,
                    [&](size_t begin, size_t end) { return run_tasks(product, begin, end, kernels); });
  });
}

// An INT8 weight of codes -127 to 127; the greatest are as far from zero as they can be.
struct Bytes {
  std::vector<int8_t> codes;
  std::vector<float> scales;
  Int8Matrix matrix;

  Bytes(size_t N, size_t K, bool greatest) : codes(N * K), scales(noise(9, N)) {
    std::vector<uint32_t> word(N * K);
    words(Stream{11, 0, 0, 0}, 0, word.size(), word.data());
    for (size_t i = 0; i < codes.size(); ++i) {
      codes[i] = greatest ? static_cast<int8_t>(i % 3 == 0 ? -127 : 127)
                          : static_cast<int8_t>(static_cast<int>(word[i] >> 8) % 255 - 127);
    }
    matrix = {codes.data(), scales.data(), N, K};
  }
};

// `greatest`: every q of both is as far from zero as it can be, so that sums are as large as they get. G: 0 of INT8.
void products(size_t T, size_t N, size_t K, size_t G, bool greatest) {
  const Bytes bytes(N, K, greatest);
  const bool is_int8 = G == 0;
  G = is_int8 ? 32 : G;
  // Exactly as many bytes as there are, so that a tool that looks for reads past the end finds them.
  std::vector<uint32_t> word(N * K / 2 + N * K / G);
  words(Stream{5, 0, 0, 0}, 0, word.size(), word.data());
  std::vector<uint8_t> codes(N * K / 2);
  std::vector<uint16_t> scales(N * K / G);
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = greatest ? 0xFF : static_cast<uint8_t>(word[i] >> 24);
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = static_cast<uint16_t>(0x3C00u + (word[codes.size() + i] >> 24));
  }
  const Int4Matrix weight{codes.data(), scales.data(), N, K, G};
  const std::vector<float> x = greatest ? std::vector<float>(T * K, 3.0f) : noise(3, T * K), bias = noise(4, N);
  const Rounded rounded(x, T, K, SIZE_MAX / 2);
  std::vector<float> w(K);
  std::vector<double> sums, sizes;
  for (size_t t = 0; t < T; ++t) {
    for (size_t n = 0; n < N; ++n) {
      int4_dequantize_row(weight, n, w.data());
      for (size_t k = 0; is_int8 && k < K; ++k) {
        w[k] = bytes.codes[n * K + k] * bytes.scales[n];
      }
      double sum = static_cast<double>(bias[n]), size = std::abs(sum);
      for (size_t k = 0; k < K; ++k) {
        const double term = rounded.q(t, k) * static_cast<double>(rounded.scale(t, k)) * static_cast<double>(w[k]);
        sum += term;
        size += std::abs(term);
      }
      sums.push_back(sum);
      sizes.push_back(size);
    }
  }
  const auto product_of = [&](const RoundedRows& rows) {
    RoundedLinear product = is_int8 ? rounded_linear(bytes.matrix, bias.data(), nullptr)
                                    : RoundedLinear{rows, weight, bias.data(), nullptr};
    product.x = rows;
    return product;
  };
  const RoundedLinear product = product_of(rounded.rows);
  std::vector<float> fused;
  for (const Variant& variant : variants()) {
    const std::vector<float> whole = result_of(product, *variant.kernels, SIZE_MAX / 2);
    bool near = true;
    for (size_t i = 0; i < whole.size(); ++i) {
      near = near && std::abs(static_cast<double>(whole[i]) - sums[i]) <= 1e-6 * sizes[i];
    }
    CHECK(near);
    CHECK(check::same_bits(whole, result_of(product, *variant.kernels, 1)));
    CHECK(check::same_bits(whole, result_of(product, *variant.kernels, 3)));
    if (variant.name != "portable") {
      CHECK(fused.empty() || check::same_bits(whole, fused));
      fused = whole;
    }
    if (T > 1) {
      const std::vector<float> row(x.end() - static_cast<ptrdiff_t>(K), x.end());
      const Rounded last(row, 1, K, 1);
      const std::vector<float> alone = result_of(product_of(last.rows), *variant.kernels, 2);
      CHECK(check::same_bits(alone, {whole.end() - static_cast<ptrdiff_t>(N), whole.end()}));
    }
  }
}

// Layers that read the same rows give what each gives alone, however their tasks are dealt.
void layers(size_t T, size_t K, const std::vector<size_t>& widths) {
  const std::vector<float> x = noise(6, T * K);
  const Rounded rounded(x, T, K, SIZE_MAX / 2);
  std::vector<std::vector<uint8_t>> codes;
  std::vector<std::vector<uint16_t>> scales;
  std::vector<std::vector<float>> biases;
  std::vector<RoundedLinear> alone;
  size_t floats = 0;
  for (size_t i = 0; i < widths.size(); ++i) {
    const size_t N = widths[i];
    std::vector<uint32_t> word(N * K / 2);
    words(Stream{7, static_cast<uint32_t>(i), 0, 0}, 0, word.size(), word.data());
    codes.emplace_back(word.begin(), word.end());
    scales.emplace_back(N * K / 32, static_cast<uint16_t>(0x3C00u + 17 * i));
    biases.push_back(noise(static_cast<uint32_t>(8 + i), N));
    const float* const bias = i % 2 == 0 ? biases[i].data() : nullptr;
    alone.push_back({rounded.rows, {codes[i].data(), scales[i].data(), N, K, 32}, bias, nullptr});
    floats += T * N;
  }
  for (const Variant& variant : variants()) {
    std::vector<float> expected;
    for (const RoundedLinear& layer : alone) {
      const std::vector<float> y = result_of(layer, *variant.kernels, SIZE_MAX / 2);
      expected.insert(expected.end(), y.begin(), y.end());
    }
    for (const size_t step : {size_t{1}, size_t{2}, size_t{5}, SIZE_MAX / 2}) {
      const std::vector<float> found = check::guarded(floats, [&](float* y) {
        std::vector<RoundedLinear> together = alone;
        for (RoundedLinear& layer : together) {
          layer.y = y;
          y += T * layer.weight.N;
        }
        const RoundedLinears product{together.data(), together.size()};
        check::in_steps(tasks_of(product, *variant.kernels).count, step,
                        [&](size_t begin, size_t end) { return run_tasks(product, begin, end, *variant.kernels); });
      });
      CHECK(check::same_bits(expected, found));
    }
  }
}

}  // namespace

int main() {
  for (const ProductVariant& variant : product_variants()) {
    if (!variant.runs_here) {
      std::printf("%s: not on this processor, not tested\n", variant.name);
    }
  }
  for (const Variant& variant : variants()) {
    std::printf("%s%s\n", variant.name.c_str(), variant.kernels == fastest_products().rounded ? ", chosen" : "");
  }
  for (const size_t T : {0u, 1u, 2u, 7u}) {
    rounding(T, 96);
  }
  what_is_not_finite();
  for (const size_t T : {0u, 1u, 2u, 3u, 4u, 5u, 7u, 8u, 9u, 17u}) {
    for (const size_t N : {1u, 4u, 15u, 16u, 17u, 33u}) {
      products(T, N, 64, 32, false);
      products(T, N, 64, 0, T % 2 == 0);
    }
    products(T, 20, 96, 96, false);
  }
  products(3, 7, 32, 32, false);
  products(1, 48, 4864, 32, false);
  products(9, 35, 1536, 128, false);
  products(5, 18, 416, 32, false);  // more than a block of the depth
  products(5, 18, 416, 32, true);
  for (const size_t T : {0u, 1u, 7u, 33u}) {
    layers(T, 96, {48, 16, 16});
    layers(T, 64, {1, 35, 8});
    layers(T, 160, {33, 0, 70, 5});
  }
  // More rows than a tile of AMX, sizes drawn at random, and the greatest sums.
  constexpr size_t kDrawn = 24;
  std::array<std::array<uint32_t, 4>, kDrawn> drawn;
  words(Stream{29, 0, 0, 0}, 0, 4 * kDrawn, drawn[0].data());
  for (const auto& [rows, columns, groups, greatest] : drawn) {
    const size_t G = 32 * (1 + size_t{groups} % 3), K = G * (1 + size_t{groups} / 3 % 30);
    products(1 + rows % 300, 1 + columns % 70, K, G, greatest % 4 == 0);
    products(1 + rows % 300, 1 + columns % 70, K, 0, greatest % 4 == 0);
  }
  products(530, 17, 64, 32, false);
  return check::result();
}
