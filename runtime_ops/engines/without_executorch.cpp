// A library without ExecuTorch, for apps whose programs run on Core ML or MLX.
#include "engines/engine.h"
#include "session/storage/files.h"

namespace zoexport {

Status check_backends(const Manifest&, const BundleFiles&) { return {}; }

Result<std::unique_ptr<Engine>> make_executorch_engine(const Manifest& manifest, const BundleFiles& files, uint32_t) {
  return Failure{ZO_BUNDLE_ERROR, join(files.path(), "manifest.json"),
                 "the engine executorch (target " + manifest.target + ")",
                 "mlx, or an engine that the host supplies, as this library was built without ExecuTorch",
                 "Compile the bundle for ios-mlx or ios-coreml."};
}

}  // namespace zoexport
