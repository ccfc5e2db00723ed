// The MLX engine as a part of this library, for apps, which link MLX and load no libraries.
#include "engines/mlx_engine.h"

namespace zoexport {

Result<std::unique_ptr<Engine>> load_mlx_engine(const BundleFiles& files) {
  char problem[kMlxProblem] = {};
  const OpenProgram open = [&files](const std::string& file) { return files.open(file); };
  std::unique_ptr<Engine> engine(zo_new_mlx_engine(&open, problem, sizeof(problem)));
  if (engine == nullptr) {
    return Failure{ZO_ENGINE_ERROR, "bundle " + files.path(), problem,
                   "the MLX engine, as the bundle's programs are MLX functions", "See the device's log."};
  }
  return engine;
}

}  // namespace zoexport
