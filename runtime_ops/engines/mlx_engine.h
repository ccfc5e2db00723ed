// The one function of the MLX engine, whether it is a library of its own or linked.
#pragma once

#include <functional>
#include <string>

#include "engines/engine.h"

namespace zoexport {

// Opens a program's file, checked (BundleFiles::open). A function, since a library of its own has none of ours.
using OpenProgram = std::function<Result<OpenFile>(const std::string& file)>;

// Room for the reason why there is no engine.
constexpr size_t kMlxProblem = 256;

}  // namespace zoexport

// Return the engine of a bundle whose files `open` opens (`open` must outlive it), or null after writing the reason.
extern "C" ZO_API zoexport::Engine* zo_new_mlx_engine(const zoexport::OpenProgram* open, char* problem, size_t size);
