// Sparse products in both forms and every variant that this processor can run, against a loop over entries and rows,
// bit for bit; halves against their definition; the update of a master in half.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "kernel_results.h"
#include "kernels/half.h"
#include "kernels/product_variants.h"
#include "kernels/products.h"
#include "kernels/sparse.h"
#include "kernels/sparse_kernels.h"
#include "kernels/zeroth_order.h"
#include "rng/normal.h"

using namespace zoexport::kernels;
using check::noise;
using check::same_bits;
using zoexport::rng::normals;
using zoexport::rng::Stream;
using zoexport::rng::words;

namespace {

// --- halves ---------------------------------------------------------------------------------------

// As IEEE 754 states binary16.
double value_of(uint32_t half) {
  const double sign = (half & 0x8000u) != 0 ? -1.0 : 1.0;
  const int exponent = static_cast<int>((half >> 10) & 31u);
  const double fraction = static_cast<double>(half & 1023u);
  if (exponent == 31) {
    return fraction == 0.0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024.0 + fraction, exponent - 25));
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

void halves_are_their_definition() {
  bool exact = true, back = true;
  for (uint32_t half = 0; half < 0x10000u; ++half) {
    const float value = half_to_float(static_cast<uint16_t>(half));
    const bool nan = (half & 0x7FFFu) > 0x7C00u;
    const uint32_t quiet_nan = (half & 0x8000u) << 16 | 0x7FC00000u | (half & 0x03FFu) << 13;
    exact =
        exact && (nan ? bits_of(value) == quiet_nan
                      : static_cast<double>(value) == value_of(half) && std::signbit(value) == ((half & 0x8000u) != 0));
    back = back && float_to_half(value) == (nan ? half | 0x0200u : half);
  }
  CHECK(exact);
  CHECK(back);
}

void rounding_is_to_nearest_even() {
  bool nearest = true;
  // Between each finite half and the next: the middle goes to the even one, whatever lies beside it to its own side.
  for (uint32_t half = 0; half < 0x7C00u; ++half) {
    const double low = value_of(half);
    const double high = half + 1 == 0x7C00u ? 65536.0 : value_of(half + 1);
    const float middle = static_cast<float>((low + high) / 2);
    const uint32_t even = half % 2 == 0 ? half : half + 1;
    for (const uint32_t sign : {0u, 0x8000u}) {
      const auto rounded = [&](float value) { return float_to_half(sign == 0 ? value : -value) ^ sign; };
      nearest = nearest && rounded(middle) == even && rounded(std::nextafterf(middle, 0.0f)) == half &&
                rounded(std::nextafterf(middle, 1e6f)) == half + 1;
    }
  }
  CHECK(nearest);
  const float inf = std::numeric_limits<float>::infinity();
  for (const float large : {65520.0f, 65536.0f, 1e30f, std::numeric_limits<float>::max(), inf}) {
    CHECK(float_to_half(large) == 0x7C00u && float_to_half(-large) == 0xFC00u);
  }
  const float least = std::numeric_limits<float>::denorm_min();
  for (const float small : {0.0f, least, std::numeric_limits<float>::min(), 0x1p-25f}) {
    CHECK(float_to_half(small) == 0u && float_to_half(-small) == 0x8000u);
  }
  CHECK(float_to_half(std::nextafterf(0x1p-25f, 1.0f)) == 1u);
  // A payload that a half has no room for.
  float nan;
  const uint32_t bits = 0xFF800001u;
  std::memcpy(&nan, &bits, sizeof(nan));
  CHECK(float_to_half(nan) == 0xFE00u);
}

void half_update_is_rounded_once() {
  for (const size_t n : {1u, 255u, 256u, 257u, 1000u}) {
    std::vector<uint16_t> master(n), out(n);
    std::vector<float> wide = noise(1, n), moved(n);
    for (size_t i = 0; i < n; ++i) {
      // Every size of number: some become subnormal, some infinite.
      master[i] = float_to_half(std::ldexp(wide[i], static_cast<int>(i % 40) - 24));
      wide[i] = half_to_float(master[i]);
    }
    const std::vector<float> g = {0.5f, -1.25f, 3.0f};
    CHECK(zo_update(wide.data(), n, g.data(), g.size(), 1e-2f, 7, 12, 5, moved.data()));
    CHECK(zo_update_half(master.data(), n, g.data(), g.size(), 1e-2f, 7, 12, 5, out.data()));
    size_t changed = 0;
    for (size_t i = 0; i < n; ++i) {
      CHECK(out[i] == float_to_half(moved[i]));
      changed += out[i] != master[i] ? 1 : 0;
    }
    CHECK(changed > n / 4);
    CHECK(zo_update_half(master.data(), n, g.data(), g.size(), 1e-2f, 7, 12, 5, master.data()));
    CHECK(master == out);
  }
  const std::vector<uint16_t> special = {0x8000u, 0x7C00u, 0x7C01u, 0xFFFFu, 0x0001u};
  std::vector<uint16_t> out(special.size());
  const float none[2] = {0.0f, -0.0f}, one[1] = {1.0f};
  CHECK(zo_update_half(special.data(), special.size(), none, 2, 1.0f, 7, 0, 5, out.data()) && out == special);
  out.assign(special.size(), 7);
  CHECK(!zo_update_half(special.data(), special.size(), one, 1, 1.0f, 7, 0, 5, out.data()));
  CHECK(!zo_update_half(special.data(), special.size(), one, 0, 1.0f, 7, 3, 5, out.data()));
  CHECK(out == std::vector<uint16_t>(special.size(), 7));
}

// --- sparse products ------------------------------------------------------------------------------

// A matrix (N, K) of which entries begin .. end-1 are trained; others come before and after them.
struct Sparse {
  std::vector<float> x, y;
  std::vector<uint16_t> values;
  std::vector<int32_t> places;
  SparseProduct product;

  Sparse(size_t rows, size_t N, size_t K, size_t begin, size_t entries, float epsilon, uint32_t queries)
      : x(noise(1, rows * K)), y(noise(2, rows * N)), values(begin + entries + 3), places(values.size(), -1) {
    const std::vector<float> wide = noise(3, values.size());
    for (size_t e = 0; e < values.size(); ++e) {
      values[e] = float_to_half(wide[e]);
    }
    // Any places of the matrix, no two the same.
    std::vector<uint32_t> word(N * K);
    words(Stream{5, 0, 0, 0}, 0, word.size(), word.data());
    std::vector<int32_t> all(N * K);
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = static_cast<int32_t>(i);
    }
    std::sort(all.begin(), all.end(),
              [&](int32_t a, int32_t b) { return word[static_cast<size_t>(a)] < word[static_cast<size_t>(b)]; });
    std::sort(all.begin(), all.begin() + static_cast<ptrdiff_t>(entries));
    std::copy_n(all.begin(), entries, places.begin() + static_cast<ptrdiff_t>(begin));
    const size_t end = begin + entries;
    const uint32_t step = 0xFFFFFFFFu - queries;
    product = {rows, N,       K,        x.data(), y.data(), values.data(), places.data(), begin,
               end,  epsilon, 1u << 31, step,     17,       queries,       nullptr};
  }
};

// As sparse.h states it.
std::vector<float> expected_of(const SparseProduct& p) {
  std::vector<float> out(p.y, p.y + p.rows * p.N);
  for (size_t r = 0; r < p.rows; ++r) {
    const size_t copy = p.epsilon == 0.0f ? 0 : r / (p.rows / (2 * p.queries));
    for (size_t e = p.begin; e < p.end; ++e) {
      float value = half_to_float(p.values[e]);
      if (p.epsilon != 0.0f) {
        float z;
        normals(Stream{p.seed, p.tensor_id, static_cast<uint32_t>(copy / 2), p.step}, e, 1, &z);
        const float move = p.epsilon * z;
        value = copy % 2 == 0 ? value + move : value - move;
      }
      const size_t place = static_cast<size_t>(p.places[e]);
      float& sum = out[r * p.N + place / p.K];
      const float term = value * p.x[r * p.K + place % p.K];
      sum = sum + term;
    }
  }
  return out;
}

std::vector<float> result_of(SparseProduct product, SparseForm form, const SparseKernels& kernels, size_t step) {
  return check::guarded(product.rows * product.N, [&](float* out) {
    product.out = out;
    check::in_steps(tasks_of(product, kernels).count, step,
                    [&](size_t begin, size_t end) { return run_tasks(product, begin, end, form, kernels); });
  });
}

void all_variants(size_t rows, size_t N, size_t K, size_t begin, size_t entries, float epsilon, uint32_t queries) {
  const Sparse sparse(rows, N, K, begin, entries, epsilon, queries);
  CHECK(sparse_rows_fit(sparse.product) && sparse_places_fit(sparse.product));
  const std::vector<float> expected = expected_of(sparse.product);
  CHECK(entries == 0 || rows == 0 || !same_bits(expected, sparse.y));
  for (const ProductVariant& variant : product_variants()) {
    if (variant.runs_here) {
      for (const SparseForm form : {SparseForm::kRows, SparseForm::kTiles}) {
        CHECK(same_bits(expected, result_of(sparse.product, form, *variant.sparse, SIZE_MAX / 2)));
        CHECK(same_bits(expected, result_of(sparse.product, form, *variant.sparse, 1)));
      }
    }
  }
}

void what_does_not_fit() {
  Sparse sparse(12, 9, 7, 2, 5, 1e-3f, 3);
  SparseProduct& p = sparse.product;
  CHECK(sparse_rows_fit(p) && sparse_places_fit(p));
  p.queries = 4;
  CHECK(!sparse_rows_fit(p));
  p.epsilon = 0.0f;
  CHECK(sparse_rows_fit(p));
  p.queries = 0;
  CHECK(!sparse_rows_fit(p));
  for (const int32_t first : {-1, INT32_MIN, sparse.places[3], INT32_MAX}) {
    sparse.places[2] = first;
    CHECK(!sparse_places_fit(p));
  }
  sparse.places[2] = 0;
  sparse.places[6] = 62;
  CHECK(sparse_places_fit(p));
  sparse.places[6] = 63;  // N * K
  CHECK(!sparse_places_fit(p));
  p.end = p.begin;
  CHECK(sparse_places_fit(p));
}

// Places up to the largest, at both ends of rows.
void places_are_divided_exactly() {
  for (const size_t K : {46341u, 65536u, 1000003u}) {
    const size_t N = static_cast<size_t>(INT32_MAX) / K;
    for (const size_t n : {size_t{0}, N / 3, N - 1}) {
      std::vector<int32_t> places;
      for (const size_t k : {size_t{0}, K / 2, K - 1}) {
        const int32_t place = static_cast<int32_t>(n * K + k);
        if (places.empty() || places.back() != place) {
          places.push_back(place);
        }
      }
      const std::vector<uint16_t> values(places.size(), 0x3C00u);  // 1
      std::vector<float> x(K), y(N), out(N);
      for (size_t k = 0; k < K; ++k) {
        x[k] = static_cast<float>(k + 1);
      }
      const SparseProduct product{1,    N, K, x.data(), y.data(), values.data(), places.data(), 0, places.size(),
                                  0.0f, 7, 3, 5,        1,        out.data()};
      CHECK(run_tasks(product, 0, tasks_of(product).count, SparseForm::kRows));
      float sum = 0.0f;
      for (const int32_t place : places) {
        sum = sum + x[static_cast<size_t>(place) % K];
      }
      CHECK(out[n] == sum && std::count(out.begin(), out.end(), 0.0f) == static_cast<ptrdiff_t>(N - 1));
    }
  }
}

}  // namespace

int main() {
  for (const ProductVariant& variant : product_variants()) {
    std::printf("%s: %s%s\n", variant.name, variant.runs_here ? "compared" : "does not run here",
                &variant == &fastest_products() ? ", chosen" : "");
  }
  halves_are_their_definition();
  rounding_is_to_nearest_even();
  half_update_is_rounded_once();
  for (const uint32_t queries : {1u, 2u, 3u, 4u}) {
    for (const size_t copy : {1u, 3u, 8u, 16u, 21u}) {
      all_variants(2 * queries * copy, 33, 50, 4 * queries + copy % 4, 400, 1e-2f, queries);
    }
  }
  for (const size_t N : {1u, 2u, 63u, 64u, 65u, 131u}) {
    for (const size_t K : {1u, 4u, 31u}) {
      all_variants(40, N, K, 5, N * K / 2, 1e-2f, 1);  // chunks and bands end anywhere
      all_variants(37, N, K, 7, N * K, 0.0f, 3);
    }
  }
  all_variants(36, 200, 70, 3, 0, 1e-2f, 1);
  all_variants(36, 200, 70, 3, 1, 1e-2f, 1);
  all_variants(0, 20, 30, 3, 9, 1e-2f, 2);
  all_variants(150, 300, 1000, 1, 3000, 1e-3f, 1);  // blocks of rows
  all_variants(640, 100, 60, 2, 300, 1e-3f, 4);
  what_does_not_fit();
  places_are_divided_exactly();
  return check::result();
}
