#include "engines/engine.h"

namespace zoexport {
namespace {

std::vector<zo_tensor> to_c(const std::vector<Tensor>& tensors) {
  std::vector<zo_tensor> result;
  result.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    result.push_back({tensor.name, tensor.dtype, static_cast<int32_t>(tensor.shape.size()), tensor.shape.data(),
                      tensor.data, tensor.bytes});
  }
  return result;
}

class CallbackEngine : public Engine {
 public:
  explicit CallbackEngine(const zo_engine& callbacks) : callbacks_(callbacks) {}

  // The host loads its programs itself.
  Status load(const ProgramSpec&) override { return {}; }

  Status run(const ProgramSpec& program, const std::vector<Tensor>& inputs,
             const std::vector<Tensor>& outputs) override {
    const std::vector<zo_tensor> in = to_c(inputs);
    const std::vector<zo_tensor> out = to_c(outputs);
    char message[512] = {};
    const int32_t code = callbacks_.run(callbacks_.user, program.name.c_str(), in.data(), in.size(), out.data(),
                                        out.size(), message, sizeof(message));
    message[sizeof(message) - 1] = '\0';
    if (code == 0) {
      return {};
    }
    return Failure{ZO_ENGINE_ERROR, "program " + program.name,
                   message[0] != '\0' ? message : "error " + std::to_string(code), "the host's engine to run it",
                   "See the host's log."};
  }

 private:
  zo_engine callbacks_;
};

}  // namespace

std::unique_ptr<Engine> make_callback_engine(const zo_engine& callbacks) {
  return std::make_unique<CallbackEngine>(callbacks);
}

}  // namespace zoexport
