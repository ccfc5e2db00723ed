// The one function of the MLX engine, whether it is a library of its own or linked.
#pragma once

#include "engines/engine.h"

namespace zoexport {

// Room for the reason why there is no engine.
constexpr size_t kMlxProblem = 256;

}  // namespace zoexport

// The engine of a bundle, or null after writing why there is none.
extern "C" ZO_API zoexport::Engine* zo_new_mlx_engine(const char* bundle, char* problem, size_t size);
