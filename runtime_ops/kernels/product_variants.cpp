#include "product_variants.h"

#include <algorithm>

#include "grid_kernels.h"
#include "sparse_kernels.h"

namespace zoexport {
namespace kernels {
namespace {

std::vector<ProductVariant> list() {
#if defined(__x86_64__)
  // Asks the processor and, as wide registers must be saved, the system.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  // Sparse products with AVX-512 were no faster: they wait for memory. With rows a power of two apart they were slower,
  // as transposing sixteen of them asks for more lines than a set of the cache has.
  return {{"avx512", avx2 && __builtin_cpu_supports("avx512f") != 0, &products_avx512, &sparse_avx2, &grid_avx512},
          {"avx2", avx2, &products_avx2, &sparse_avx2, &grid_avx2},
          {"portable", true, &products_portable, &sparse_portable, &grid_portable}};
#elif defined(__aarch64__)
  return {{"neon", true, &products_neon, &sparse_neon, &grid_neon},
          {"portable", true, &products_portable, &sparse_portable, &grid_portable}};
#else
  return {{"portable", true, &products_portable, &sparse_portable, &grid_portable}};
#endif
}

}  // namespace

const std::vector<ProductVariant>& product_variants() {
  static const std::vector<ProductVariant> all = list();
  return all;
}

const ProductVariant& fastest_products() {
  const std::vector<ProductVariant>& all = product_variants();
  return *std::find_if(all.begin(), all.end(), [](const ProductVariant& one) { return one.runs_here; });
}

}  // namespace kernels
}  // namespace zoexport
