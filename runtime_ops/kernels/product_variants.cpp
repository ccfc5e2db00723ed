#include "product_variants.h"

#include <algorithm>

#if defined(__linux__) && defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__linux__) && defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
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

#if defined(__x86_64__)
// Linux lets a process use AMX's tiles after a request, which it refuses if it cannot save them.
bool has_amx() {
#if defined(__linux__)
  // GCC 12 has no names for them.
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  constexpr unsigned kNeeded = kAmxBf16 | kAmxTile | kAmxInt8;
  constexpr long kRequest = 0x1023, kTiles = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kNeeded) == kNeeded &&
         syscall(SYS_arch_prctl, kRequest, kTiles) == 0;
#else
  return false;
#endif
}
#endif

std::vector<ProductVariant> list() {
#if defined(__x86_64__)
  // Asks the processor and, as wide registers must be saved, the system.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  // Sparse products with AVX-512 were no faster: they wait for memory. With rows a power of two apart they were slower,
  // as transposing sixteen of them asks for more lines than a set of the cache has.
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") != 0;
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni") != 0;
  const bool bf16 = vnni && __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512bf16") != 0;
  const bool amx = bf16 && has_amx();
  const RoundedKernels* wide = vnni ? &rounded_vnni : &rounded_avx2;
  const ProductVariant pairs{"avx512_bf16", bf16, &products_avx512_bf16, &sparse_avx2, &grid_avx512, wide};
  const ProductVariant fused{"avx512", avx512, &products_avx512, &sparse_avx2, &grid_avx512, wide};
  // On a Xeon pairs gave 84 GFLOP/s, rounded numbers and multiply-adds 138 (build/bench_products).
  const bool intel = __builtin_cpu_is("intel") != 0;
  return {{"amx", amx, &products_amx, &sparse_avx2, &grid_avx512, &rounded_amx},
          intel ? fused : pairs,
          intel ? pairs : fused,
          {"avx2", avx2, &products_avx2, &sparse_avx2, &grid_avx2, &rounded_avx2},
          portable()};
#elif defined(__aarch64__)
#if defined(__linux__)
  constexpr unsigned long kI8mm = 1ul << 13, kBf16 = 1ul << 14;  // HWCAP2_I8MM and HWCAP2_BF16, which old headers lack
  const bool dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  const bool i8mm = dotprod && (getauxval(AT_HWCAP2) & kI8mm) != 0;
  const bool bf16 = (getauxval(AT_HWCAP2) & kBf16) != 0;
#else
  const bool dotprod = false, i8mm = false, bf16 = false;
#endif
  const RoundedKernels* rounded = i8mm ? &rounded_i8mm : dotprod ? &rounded_dotprod : &rounded_neon;
  return {{"neon_bf16", bf16, &products_neon_bf16, &sparse_neon, &grid_neon, rounded},
          {"neon", true, &products_neon, &sparse_neon, &grid_neon, rounded},
          portable()};
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
