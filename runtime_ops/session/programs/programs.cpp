#include "session/programs/programs.h"

#include <chrono>

#include "session/storage/faults.h"

namespace zoexport {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

Programs::Programs(const std::vector<ProgramSpec>& programs, Engine& engine)
    : programs_(programs), engine_(engine), loaded_(programs.size(), false) {
  for (const ProgramSpec& program : programs) {
    costs_.push_back({&program});
  }
}

Status Programs::run(const ProgramSpec& program, const std::vector<Tensor>& inputs,
                     const std::vector<Tensor>& outputs) {
  const auto index = static_cast<size_t>(&program - programs_.data());
  ProgramCost& cost = costs_[index];
  if (!loaded_[index]) {
    const auto start = Clock::now();
    ZO_TRY(engine_.load(program));
    loaded_[index] = true;
    cost.load_seconds = seconds_since(start);
  }
  const auto start = Clock::now();
  ZO_TRY(engine_.run(program, inputs, outputs));
  ZO_TRY(Faults::current()->check());
  cost.seconds += seconds_since(start);
  ++cost.calls;
  return {};
}

std::vector<int64_t> sizes_of(const ValueSpec& value) {
  std::vector<int64_t> shape;
  shape.reserve(value.shape.size());
  for (const Dimension& dimension : value.shape) {
    shape.push_back(dimension.max);
  }
  return shape;
}

Tensor make_tensor(const ValueSpec& value, std::vector<int64_t> shape, const void* data) {
  size_t bytes = dtype_bytes(value.dtype);
  for (int64_t size : shape) {
    bytes *= static_cast<size_t>(size);
  }
  return {value.name.c_str(), value.dtype, std::move(shape), const_cast<void*>(data), bytes};
}

}  // namespace zoexport
