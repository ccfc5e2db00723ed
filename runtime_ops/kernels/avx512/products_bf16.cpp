// Products with AVX-512, those of numbers rounded to bfloat16 by their pairs. Compiled with AVX-512's flags, -mavx512bw
// and -mavx512bf16.
#include "kernels/avx512/bf16.h"
#include "kernels/vector_bf16.h"

namespace zoexport {
namespace kernels {
namespace {

constexpr TiledKernels tiles = rounded_tiles<Avx512Bf16>();

}  // namespace

constexpr ProductKernels products_avx512_bf16 = bf16_kernels<Avx512Bf16>(&tiles);

}  // namespace kernels
}  // namespace zoexport
