// Products of rounded rows with AVX-512 and VNNI. Compiled with -mavx512f -mavx512vnni; see vector_rounded.h.
#include "kernels/avx512/dots.h"
#include "kernels/vector_rounded.h"

namespace zoexport {
namespace kernels {

constexpr RoundedKernels rounded_vnni = rounded_kernels<Avx512, Dots, ByteDots, detail::Above128>();

}  // namespace kernels
}  // namespace zoexport
