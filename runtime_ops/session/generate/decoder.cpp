#include "session/generate/decoder.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "session/manifest/needs.h"
#include "session/manifest/roles.h"
#include "session/memory.h"
#include "session/storage/sizes.h"

namespace zoexport {
namespace {

// A call reads all weights once, which takes as long as computing so many rows.
constexpr size_t kRowsOfACall = 8;

// Return the cost of `count` tokens in rows, in calls of ascending `lengths` up to `most`; `first` gets the first one.
size_t cost_of(size_t count, const std::vector<uint32_t>& lengths, size_t most, uint32_t& first) {
  first = lengths.front();
  const uint32_t* padded = nullptr;
  for (const uint32_t& length : lengths) {
    if (length <= std::min(count, most)) {
      first = length;
    } else if (length <= most && padded == nullptr) {
      padded = &length;
    }
  }
  uint32_t next = 0;
  size_t cost = first + kRowsOfACall;
  if (count > first) {
    cost += count / first > kRowsOfACall ? count : cost_of(count - first, lengths, most - first, next);
  }
  if (padded != nullptr && first < count && *padded + kRowsOfACall < cost) {
    first = *padded;
    cost = first + kRowsOfACall;
  }
  return cost;
}

}  // namespace

Decoder::Decoder(const Manifest& manifest, const Slots& slots, Programs& programs, FrozenWeights& weights)
    : spec_(*manifest.generate), slots_(slots), programs_(programs), weights_(weights), noise_(manifest.step.noise) {}

Status Decoder::prepare() {
  std::vector<FrozenWeights::Read> reads, tables;
  std::vector<Stage> stages(spec_.stages.size());
  uint64_t total = 0, passed = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    const StageSpec& bound = spec_.stages[i];
    for (uint32_t length : spec_.lengths) {
      const ProgramSpec& program = *spec_.program(i, length);
      for (const ValueSpec& value : program.inputs) {
        if (value.role == "weight" || value.role == "table") {
          std::vector<FrozenWeights::Read>& list = value.role == "table" ? tables : reads;
          list.push_back({&value, bound.bind.at(value.name), program.name + " of stage " + bound.name});
        } else if (value.role == "cache" && length == spec_.lengths.front()) {
          const auto size = [&](size_t axis) { return static_cast<size_t>(value.shape[axis].max); };
          stages[i].caches.push_back({&value, size(0), size(1), size(2), nullptr, {}});
          total = size_sum(total, value_bytes(value));
        }
      }
      for (const ValueSpec& value : program.outputs) {
        passed = std::max(passed, value_bytes(value));
      }
    }
  }
  if (size_sum(total, size_product(passed, 4)) > machine_memory()) {
    return Failure{ZO_BUNDLE_ERROR, "generate.context", "keys, values and results that take " + bytes_text(total),
                   "at most the " + bytes_text(machine_memory()) + " of this machine's memory",
                   "Compile the bundle with a smaller generate.context."};
  }
  // Programs that hold their weights, of a model without tables, need no file of them.
  if (!reads.empty() || !tables.empty()) {
    ZO_TRY(weights_.open(reads));
  }
  for (const FrozenWeights::Read& table : tables) {
    ZO_TRY(weights_.check_table(table, spec_.context));
  }
  memory_.reset(static_cast<float*>(std::calloc(total / sizeof(float) + 1, sizeof(float))));
  if (memory_ == nullptr) {
    return Failure{ZO_INTERNAL_ERROR, "generate.context", "no memory for " + bytes_text(total), "enough for the caches",
                   "Close other programs, or compile with a smaller generate.context."};
  }
  float* place = memory_.get();
  for (size_t i = 0; i < stages.size(); ++i) {
    for (Cache& cache : stages[i].caches) {
      cache.kept = place;
      place += cache.groups * cache.rows * cache.width;
    }
    for (uint32_t length : spec_.lengths) {
      const ProgramSpec& program = *spec_.program(i, length);
      std::vector<Source>& sources = stages[i].sources[&program];
      sources.clear();
      Call call;
      for (const ValueSpec& value : program.inputs) {
        sources.push_back(source_of(value, spec_.stages[i]));
        call.inputs.push_back(make_tensor(value, sizes_of(value), nullptr));
      }
      for (const ValueSpec& value : program.outputs) {
        call.outputs.push_back(make_tensor(value, sizes_of(value), nullptr));
      }
      calls_[&program] = std::move(call);
    }
  }
  stages_ = std::move(stages);
  logits_.resize(static_cast<size_t>(
      spec_.program(spec_.stages.size() - 1, spec_.lengths.front())->output("logits")->shape[1].max));
  return {};
}

void Decoder::go_back(size_t count) {
  for (const Stage& stage : stages_) {
    for (const Cache& cache : stage.caches) {
      count = position_ > std::max(count, cache.rows) ? 0 : count;
    }
  }
  position_ = static_cast<uint32_t>(std::min<size_t>(count, position_));
  fed_.resize(position_);
}

uint32_t Decoder::next_length(size_t count) const {
  if (spec_.recomputes()) {
    return *std::lower_bound(spec_.lengths.begin(), spec_.lengths.end(), count);
  }
  uint32_t length = 1;
  (void)cost_of(count, spec_.lengths, room(), length);
  return length;
}

Status Decoder::feed(const int64_t* tokens, size_t count, uint64_t seed, const StateValues& state) {
  if (stages_.empty()) {
    ZO_TRY(prepare());
  }
  scalars_.seed = seed;
  fed_.insert(fed_.end(), tokens, tokens + count);
  if (spec_.recomputes()) {
    position_ = 0;
    tokens = fed_.data();
    count = fed_.size();
  }
  while (count > 0) {
    const uint32_t length = next_length(count);
    const auto taken = static_cast<uint32_t>(std::min<size_t>(length, count));
    tokens_.assign(tokens, tokens + taken);
    tokens_.resize(length, 0);
    first_ = position_;
    taken_ = taken;
    activations_.clear();
    for (size_t stage = 0; stage + 1 < stages_.size(); ++stage) {
      ZO_TRY(run(stage, *spec_.program(stage, length), taken, state));
      std::swap(activations_, next_);
    }
    position_ += taken;
    tokens += taken;
    count -= taken;
    if (count == 0) {
      // The head sees the last token alone.
      const size_t width = activations_[0].size() / length;
      std::memmove(activations_[0].data(), activations_[0].data() + (taken - 1) * width, width * sizeof(float));
      const size_t head = stages_.size() - 1;
      ZO_TRY(run(head, *spec_.program(head, length), taken, state));
    }
  }
  return {};
}

Status Decoder::run(size_t stage, const ProgramSpec& program, uint32_t count, const StateValues& state) {
  Stage& own = stages_[stage];
  Call& call = calls_.at(&program);
  const std::vector<Source>& sources = own.sources.at(&program);
  size_t taken = 0, cache = 0, given = 0, rows = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    const ValueSpec& value = program.inputs[i];
    const void* data = value.role == "activation" ? activations_[taken++].data()
                       : value.role == "cache"    ? own.caches[cache++].kept
                                                  : input(value, sources[i], state);
    call.inputs[i].data = const_cast<void*>(data);
  }
  next_.resize(program.outputs.size());
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const std::string& role = program.outputs[i].role;
    std::vector<float>& room = role == "activation"   ? next_[given++]
                               : role == "cache_rows" ? own.caches[rows++].given
                                                      : logits_;
    room.resize(call.outputs[i].bytes / sizeof(float));
    call.outputs[i].data = room.data();
  }
  next_.resize(given);
  ZO_TRY(programs_.run(program, call.inputs, call.outputs));
  keep(own, count);
  return {};
}

Decoder::Source Decoder::source_of(const ValueSpec& value, const StageSpec& bound) const {
  Source source{};
  if (value.role == "weight" || value.role == "table") {
    const std::string& name = bound.bind.at(value.name);
    source.data = weights_.data(name);
    source.row = value.role == "table" ? row_of(name, value) : 0;
  } else if (value.role == "state") {
    source.slot = slots_.find(bound.bind.at(value.name));
  }
  return source;
}

const void* Decoder::input(const ValueSpec& value, const Source& source, const StateValues& state) {
  if (source.data != nullptr) {
    return source.data + position_ * source.row;
  }
  const std::string& role = value.role;
  if (role == "state") {
    return state(source.slot);
  }
  if (is_noise(value)) {
    return noise_.values(value, slots_.spec(slots_.find(noise_slot(value))), scalars_);
  }
  return role == "tokens"     ? static_cast<const void*>(tokens_.data())
         : role == "position" ? static_cast<const void*>(&first_)
         : role == "count"    ? static_cast<const void*>(&taken_)
                              : scalar_value(scalars_, role);
}

uint64_t Decoder::row_of(const std::string& name, const ValueSpec& value) const {
  // Its sizes but for those of the tokens at hand are those of the tensor.
  uint64_t row = dtype_bytes(value.dtype);
  const size_t axes = value.shape.size();
  size_t axis = 0;
  while (axis < axes && weights_.size(name, axis) == 1) {
    ++axis;
  }
  for (size_t i = axis + 1; i < axes; ++i) {
    row *= static_cast<uint64_t>(value.shape[i].max);
  }
  return row;
}

void Decoder::keep(Stage& stage, uint32_t count) {
  for (Cache& cache : stage.caches) {
    const size_t tokens = cache.given.size() / (cache.groups * cache.width);
    for (size_t group = 0; group < cache.groups; ++group) {
      for (size_t i = count > cache.rows ? count - cache.rows : 0; i < count; ++i) {
        // A state is given once, after the last token.
        const size_t row = std::min(i, tokens - 1);
        std::memcpy(cache.kept + (group * cache.rows + (position_ + i) % cache.rows) * cache.width,
                    cache.given.data() + (group * tokens + row) * cache.width, cache.width * sizeof(float));
      }
    }
  }
}

}  // namespace zoexport
