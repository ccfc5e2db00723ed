// The MLX engine is in a library next to this one, which is loaded when a bundle needs it.
#include <dlfcn.h>

#include "engines/mlx_engine.h"
#include "session/storage/files.h"

namespace zoexport {
namespace {

const char* const kLibrary = "libzoexport_mlx.so";
const char* const kFix = "Run 'make setup' with the package mlx installed (zoexport[ios-mlx]), or use another target.";

// The folder of the library that this function is in.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) {
    return ".";
  }
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

Failure missing(const std::string& bundle, const std::string& found) {
  return {ZO_ENGINE_ERROR, "bundle " + bundle, found, "the MLX engine, as the bundle's programs are MLX functions",
          kFix};
}

}  // namespace

Result<std::unique_ptr<Engine>> load_mlx_engine(const BundleFiles& files) {
  // Never closed: MLX's threads and what they hold live as long as the process.
  void* library = dlopen(join(own_folder(), kLibrary).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return missing(files.path(), reason != nullptr ? reason : "a library that cannot be loaded");
  }
  const auto make = reinterpret_cast<decltype(&zo_new_mlx_engine)>(dlsym(library, "zo_new_mlx_engine"));
  if (make == nullptr) {
    return missing(files.path(), std::string(kLibrary) + " of another version");
  }
  char problem[kMlxProblem] = {};
  const OpenProgram open = [&files](const std::string& file) { return files.open(file); };
  std::unique_ptr<Engine> engine(make(&open, problem, sizeof(problem)));
  if (engine == nullptr) {
    return missing(files.path(), problem);
  }
  return engine;
}

}  // namespace zoexport
