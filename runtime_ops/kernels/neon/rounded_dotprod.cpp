// Products of rounded rows with NEON's dot product. Compiled with -march=armv8.2-a+dotprod; see vector_rounded.h.
#include "kernels/neon/dots.h"
#include "kernels/vector_rounded.h"

namespace zoexport {
namespace kernels {

constexpr RoundedKernels rounded_dotprod = rounded_kernels<Neon, Dots, ByteDots, detail::Unchanged>();

}  // namespace kernels
}  // namespace zoexport
