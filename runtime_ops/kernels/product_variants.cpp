#include "product_variants.h"

#include <algorithm>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "grid_kernels.h"
#include "rounded.h"
#include "sparse_kernels.h"

namespace zoexport {
namespace kernels {
namespace {

ProductVariant portable() {
  return {"portable", true, &products_portable, &sparse_portable, &grid_portable, &rounded_portable};
}

std::vector<ProductVariant> list() {
#if defined(__x86_64__)
  // Asks the processor and, as wide registers must be saved, the system.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  // Sparse products with AVX-512 were no faster: they wait for memory. With rows a power of two apart they were slower,
  // as transposing sixteen of them asks for more lines than a set of the cache has.
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") != 0;
  const RoundedKernels* wide = __builtin_cpu_supports("avx512vnni") != 0 ? &rounded_vnni : &rounded_avx2;
  return {{"avx512", avx512, &products_avx512, &sparse_avx2, &grid_avx512, wide},
          {"avx2", avx2, &products_avx2, &sparse_avx2, &grid_avx2, &rounded_avx2},
          portable()};
#elif defined(__aarch64__)
#if defined(__linux__)
  const bool dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  const bool dotprod = false;
#endif
  const RoundedKernels* rounded = dotprod ? &rounded_dotprod : &rounded_neon;
  return {{"neon", true, &products_neon, &sparse_neon, &grid_neon, rounded}, portable()};
#else
  return {portable()};
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
