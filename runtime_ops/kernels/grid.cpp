#include "grid.h"

#include <algorithm>
#include <cstring>

#include "grid_kernels.h"

namespace zoexport {
namespace kernels {

bool grid_update(Grid grid, const uint8_t* codes, size_t begin, size_t end, const GridUpdate& update, uint8_t* out,
                 const GridKernels& kernels) {
  const float* g = update.gradients;
  if (update.queries == 0) {
    return false;
  }
  const size_t per_byte = grid == Grid::kInt4 ? 2 : 1;
  if (std::all_of(g, g + update.queries, [](float one) { return one == 0.0f; })) {
    std::memmove(out + begin / per_byte, codes + begin / per_byte, (end - begin) / per_byte);
    return true;
  }
  if (update.step == 0) {
    return false;
  }
  const auto run = grid == Grid::kInt4 ? kernels.update_int4 : kernels.update_int8;
  while (begin < end) {
    const size_t skip = begin % 4, count = std::min(end - begin, rng::kElements - skip);
    const uint32_t block = static_cast<uint32_t>(begin / 4);
    if (count == rng::kElements) {
      run(update, block, codes + begin / per_byte, out + begin / per_byte);
    } else {
      uint8_t whole[rng::kElements] = {};
      std::memcpy(whole + skip / per_byte, codes + begin / per_byte, count / per_byte);
      run(update, block, whole, whole);
      std::memcpy(out + begin / per_byte, whole + skip / per_byte, count / per_byte);
    }
    begin += count;
  }
  return true;
}

}  // namespace kernels
}  // namespace zoexport
