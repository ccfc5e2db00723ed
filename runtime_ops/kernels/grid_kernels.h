// The kernels of grid.h, once for each instruction set; product_variants.h lists them.
#pragma once

#include "grid.h"

namespace zoexport {
namespace kernels {

// Words of levels for rng::kLevelRows columns of a panel, and for a whole one of 32.
inline constexpr size_t kLevelWords = kMaxDepth / 4 * rng::kLevelRows;
inline constexpr size_t kPanelLevels = 2 * kLevelWords;

// All of these give the same bits. Constant data: no code that only some processors can run is called to make it.
struct GridKernels {
  rng::DrawLevels draw;

  // Panels, as those of ProductKernels, of what is stored as (columns, depth): of clamp(w + level) and of clamp(w -
  // level). Column j's levels are row j % kLevelRows of what `draw` gave at levels + j / kLevelRows * kLevelWords.
  void (*fill_int4)(Int4Matrix b, Part part, const uint32_t* levels, float* plus, float* minus);
  void (*fill_int8)(Int8Matrix b, Part part, const uint32_t* levels, float* plus, float* minus);

  // The update, with a gradient pending, of the rng::kElements integers from block `first` of their matrix on; codes
  // and out are theirs.
  void (*update_int4)(const GridUpdate& update, uint32_t first, const uint8_t* codes, uint8_t* out);
  void (*update_int8)(const GridUpdate& update, uint32_t first, const uint8_t* codes, uint8_t* out);
};

// One file each, named by the instruction set; which of them exist depends on the architecture.
extern const GridKernels grid_avx512;
extern const GridKernels grid_avx2;
extern const GridKernels grid_neon;
extern const GridKernels grid_portable;

}  // namespace kernels
}  // namespace zoexport
