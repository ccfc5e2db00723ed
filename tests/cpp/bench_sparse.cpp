// Prints what sparse products cost one thread, in each form and variant that runs here, and how SparseAddMM compares
// with SparseAdd (SensZOQ, equations 21 and 23) over int4 weights. The best of many runs, as others may use the
// machine.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "kernels/half.h"
#include "kernels/product_variants.h"
#include "kernels/products.h"
#include "kernels/sparse.h"

namespace {

using namespace zoexport::kernels;
namespace rng = zoexport::rng;
using Clock = std::chrono::steady_clock;

constexpr double kSeconds = 0.25;  // for each number
constexpr uint32_t kQueries = 4;

struct Layer {
  size_t N, K;
};

template <typename Body>
double seconds(const Body& body) {
  double least = 1e30;
  const Clock::time_point start = Clock::now();
  do {
    const Clock::time_point begin = Clock::now();
    body();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count());
  } while (std::chrono::duration<double>(Clock::now() - start).count() < kSeconds);
  return least;
}

// `count` different places of a matrix, anywhere in it.
std::vector<int32_t> places_of(Layer layer, size_t count) {
  std::vector<uint32_t> word(count);
  rng::words(rng::Stream{1, 2, 3, 4}, 0, count, word.data());
  std::vector<int32_t> places;
  for (size_t e = 0; e < count; ++e) {  // one in each of `count` ranges of about the same size
    const size_t first = e * layer.N * layer.K / count, last = (e + 1) * layer.N * layer.K / count;
    places.push_back(static_cast<int32_t>(first + word[e] % (last - first)));
  }
  return places;
}

// A weight with its sensitive entries, and rows.
struct Case {
  Layer layer;
  size_t rows;
  std::vector<float> x, y, out;
  std::vector<uint16_t> values;
  std::vector<int32_t> places;

  Case(Layer weight, size_t entries, size_t row_count)
      : layer(weight),
        rows(row_count),
        x(rows * layer.K, 0.5f),
        y(rows * layer.N, 0.25f),
        out(rows * layer.N),
        values(entries, float_to_half(0.01f)),
        places(places_of(layer, entries)) {}

  SparseProduct product(float epsilon) {
    return {rows,          layer.N, layer.K, x.data(), y.data(), values.data(), places.data(), 0,
            places.size(), epsilon, 7,       3,        5,        kQueries,      out.data()};
  }
};

void run(const SparseProduct& product, SparseForm form, const ProductVariant& variant) {
  run_tasks(product, 0, tasks_of(product, *variant.sparse).count, form, *variant.sparse);
}

void forms(Layer layer, size_t entries, size_t rows) {
  Case one(layer, entries, rows);
  const SparseProduct product = one.product(1e-3f);
  std::printf("%5zu x %5zu, %6zu entries, %4zu rows, ns a row and entry:", layer.N, layer.K, entries, rows);
  const SparseKernels* before = nullptr;  // some variants share them
  for (const ProductVariant& variant : product_variants()) {
    if (variant.runs_here && variant.sparse != before) {
      before = variant.sparse;
      const double scale = 1e9 / static_cast<double>(rows * entries);
      std::printf("  %s %5.3f by rows, %5.3f in tiles", variant.name,
                  scale * seconds([&] { run(product, SparseForm::kRows, variant); }),
                  scale * seconds([&] { run(product, SparseForm::kTiles, variant); }));
    }
  }
  std::printf("; %s is chosen\n", sparse_form(product) == SparseForm::kRows ? "by rows" : "in tiles");
}

// --- SparseAdd ------------------------------------------------------------------------------------

// The dense product of each copy with a weight of its own: panels are dequantized, get the copy's values, and multiply.
class SparseAdd {
 public:
  SparseAdd(const SparseProduct& product, const Int4Matrix& weight, const ProductKernels& kernels)
      : product_(product),
        weight_(weight),
        kernels_(kernels),
        block_(block_depth(weight.K)),
        panel_(kMaxDepth * kernels.width),
        packed_(product.rows * weight.K + kSlack) {}

  void run() {
    const size_t copies = size_t{2} * product_.queries;
    for (size_t copy = 0; copy < copies; ++copy) {
      one_copy(copy, copy * product_.rows / copies, (copy + 1) * product_.rows / copies);
    }
  }

 private:
  void one_copy(size_t copy, size_t begin, size_t end) {
    const size_t K = weight_.K, height = std::min(kernels_.rows, end - begin);
    for (size_t p = 0; p < K; p += block_) {
      for (size_t r = begin; r < end; r += height) {
        const size_t rows = std::min(height, end - r), depth = std::min(block_, K - p);
        kernels_.pack_rows(product_.x + r * K + p, K, rows, depth, packed(begin, end, r, p, depth));
      }
    }
    size_t entry = product_.begin;
    for (size_t j = 0; j < weight_.N; j += kernels_.width) {
      const size_t count = std::min(kernels_.width, weight_.N - j);
      const size_t width = (count + kernels_.lanes - 1) / kernels_.lanes * kernels_.lanes;
      size_t stop = entry;
      while (stop < product_.end && static_cast<size_t>(product_.places[stop]) < (j + count) * K) {
        ++stop;
      }
      values(copy, entry, stop);
      for (size_t p = 0; p < K; p += block_) {
        const size_t depth = std::min(block_, K - p);
        kernels_.fill_int4_transposed(weight_, {p, depth, j, count, width}, panel_.data());
        for (size_t e = entry; e < stop; ++e) {
          const size_t n = static_cast<size_t>(product_.places[e]) / K, k = static_cast<size_t>(product_.places[e]) % K;
          if (k - p < depth) {
            panel_[(k - p) * width + n - j] += values_[e - entry];
          }
        }
        for (size_t r = begin; r < end; r += height) {
          float* out = product_.out + r * weight_.N + j;
          const size_t rows = std::min(height, end - r);
          const float* before = p > 0 ? out : nullptr;
          const float* a = packed(begin, end, r, p, depth);
          kernels_.multiply({a, rows, rows, panel_.data(), width, depth, before, weight_.N, out, weight_.N, count});
        }
      }
      entry = stop;
    }
  }

  float* packed(size_t begin, size_t end, size_t row, size_t p, size_t depth) {
    return packed_.data() + (end - begin) * p + (row - begin) * depth;
  }

  // Of entries begin .. end-1 in a copy.
  void values(size_t copy, size_t begin, size_t end) {
    values_.resize(end - begin);
    rng::normals(rng::Stream{product_.seed, product_.tensor_id, static_cast<uint32_t>(copy / 2), product_.step}, begin,
                 end - begin, values_.data(), rng::fastest().normal_blocks);
    for (size_t e = begin; e < end; ++e) {
      const float move = product_.epsilon * values_[e - begin];
      const float value = half_to_float(product_.values[e]);
      values_[e - begin] = copy % 2 == 0 ? value + move : value - move;
    }
  }

  const SparseProduct& product_;
  const Int4Matrix& weight_;
  const ProductKernels& kernels_;
  const size_t block_;
  std::vector<float> panel_, packed_, values_;
};

void two_ways(Layer layer, size_t rows) {
  const ProductVariant& variant = fastest_products();
  Case one(layer, layer.N * layer.K / 1000, rows);
  const std::vector<uint8_t> codes(layer.N * layer.K / 2, 0x5A);
  const std::vector<uint16_t> scales(layer.N * layer.K / 32, 0x3C00);
  const Int4Matrix weight{codes.data(), scales.data(), layer.N, layer.K, 32};
  const SparseProduct product = one.product(1e-3f);
  const Product dense = linear(one.x.data(), rows, weight, nullptr, one.y.data());
  const double dense_time = seconds([&] { run_tasks(dense, 0, tasks_of(dense).count); });
  const double sparse_time = seconds([&] { run(product, sparse_form(product), variant); });
  SparseAdd added(product, weight, *variant.kernels);
  const double added_time = seconds([&] { added.run(); });
  std::printf("%5zu x %5zu, %4zu rows of %u copies, ms: dense %8.3f + SparseAddMM %7.3f = %8.3f, SparseAdd %8.3f\n",
              layer.N, layer.K, rows, 2 * kQueries, 1e3 * dense_time, 1e3 * sparse_time,
              1e3 * (dense_time + sparse_time), 1e3 * added_time);
}

}  // namespace

int main() {
  const Layer square{576, 576}, key{192, 576}, up{1536, 576}, down{576, 1536}, large{4096, 4096};
  // A step of SmolLM2-135M: 2048 rows, one weight in a thousand.
  double step = 0.0;
  struct Of {
    Layer layer;
    size_t count;  // in the model
  };
  for (const Of& of : {Of{square, 60}, {key, 60}, {up, 60}, {down, 30}}) {
    Case one(of.layer, of.layer.N * of.layer.K / 1000, 2048);
    const SparseProduct product = one.product(1e-3f);
    const double time = seconds([&] { run(product, sparse_form(product), fastest_products()); });
    std::printf("%5zu x %5zu, %zu times: %.3f ms each\n", of.layer.N, of.layer.K, of.count, 1e3 * time);
    step += time * static_cast<double>(of.count);
  }
  std::printf("all of a step of SmolLM2-135M: %.1f ms\n\n", 1e3 * step);
  for (const Layer& layer : {square, up, down, large}) {
    for (const size_t times : {1u, 2u, 4u, 8u, 16u}) {  // entries: (N + K) times 1/4 to 4
      forms(layer, (layer.N + layer.K) * times / 4, 512);
    }
  }
  forms(large, large.N * large.K / 1000, 512);
  std::printf("\n");
  for (const Layer& layer : {square, up, large}) {
    for (const size_t rows : {64u, 256u, 2048u}) {
      two_ways(layer, rows);
    }
  }
  return 0;
}
