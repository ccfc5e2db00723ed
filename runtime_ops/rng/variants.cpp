#include "variants.h"

#include <algorithm>

namespace zoexport {
namespace rng {
namespace {

std::vector<Variant> list() {
#if defined(__x86_64__)
  // Asks the processor and, as wide registers must be saved, the system.
  __builtin_cpu_init();
  return {{"avx512", __builtin_cpu_supports("avx512f") != 0, normal_blocks_avx512, sign_blocks_avx512},
          {"avx2", __builtin_cpu_supports("avx2") != 0, normal_blocks_avx2, sign_blocks_avx2},
          {"scalar", true, normal_blocks, sign_blocks}};
#elif defined(__aarch64__)
  return {{"neon", true, normal_blocks_neon, sign_blocks_neon}, {"scalar", true, normal_blocks, sign_blocks}};
#else
  return {{"scalar", true, normal_blocks, sign_blocks}};
#endif
}

}  // namespace

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = list();
  return all;
}

const Variant& fastest(const std::vector<Variant>& among) {
  return *std::find_if(among.begin(), among.end(), [](const Variant& one) { return one.runs_here; });
}

}  // namespace rng
}  // namespace zoexport
