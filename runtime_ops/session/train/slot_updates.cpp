#include "session/train/slot_updates.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "kernels/grid.h"
#include "kernels/orthogonal.h"
#include "kernels/zeroth_order.h"

namespace zoexport {
namespace {

// Values that one thread updates at a time: whole blocks of random words, and whole bytes.
constexpr size_t kPiece = 4096;
constexpr size_t kPiecesForAThread = 16;
static_assert(kPiece % rng::kElements == 0);

uint32_t log2_of(int64_t power) {
  uint32_t log2 = 0;
  while ((int64_t{1} << log2) < power) {
    ++log2;
  }
  return log2;
}

}  // namespace

void parallel_pieces(Engine& engine, size_t count, const std::function<void(size_t begin, size_t end)>& body) {
  engine.parallel((count + kPiece - 1) / kPiece, kPiecesForAThread,
                  [&](size_t begin, size_t end) { body(begin * kPiece, std::min(end * kPiece, count)); });
}

bool SlotUpdates::apply(const SlotSpec& slot, const SlotUpdate& update, const void* in, void* out) const {
  if (slot.integers()) {
    return apply_integers(slot, update, static_cast<const uint8_t*>(in), static_cast<uint8_t*>(out));
  }
  const auto run = [&](const auto& kernel, const auto* from, auto* to) {
    const size_t count = slot.elements;
    std::atomic<bool> done{true};
    in_pieces(count, [&](size_t begin, size_t end) {
      if (!kernel(from + begin, end - begin, update.gradients, update.queries, update.learning_rate, update.seed,
                  update.step, slot.tensor_id, to + begin, blocks_, begin)) {
        done = false;
      }
    });
    return done.load();
  };
  return slot.dtype == ZO_FLOAT16
             ? run(kernels::zo_update_half, static_cast<const uint16_t*>(in), static_cast<uint16_t*>(out))
             : run(kernels::zo_update, static_cast<const float*>(in), static_cast<float*>(out));
}

bool SlotUpdates::apply(const SlotSpec& slot, const kernels::Moments& moments, const void* in, void* out) const {
  const auto* const from = static_cast<const float*>(in);
  auto* const to = static_cast<float*>(out);
  std::atomic<bool> done{true};
  in_pieces(slot.elements, [&](size_t begin, size_t end) {
    if (!kernels::zo_update_moments(from + begin, end - begin, moments, slot.tensor_id, to + begin, blocks_, begin)) {
      done = false;
    }
  });
  return done;
}

bool SlotUpdates::apply_orthogonal(const SlotSpec& slot, kernels::Moments moments, float learning_rate, const void* in,
                                   void* out) const {
  std::vector<float> move(slot.elements);
  moments.rate = -1.0f;  // added to zeros
  if (!apply(slot, moments, move.data(), move.data())) {
    return false;
  }
  kernels::orthogonalize(move.data(), static_cast<size_t>(slot.shape[0]), static_cast<size_t>(slot.shape[1]));
  const auto* const from = static_cast<const float*>(in);
  auto* const to = static_cast<float*>(out);
  for (size_t i = 0; i < move.size(); ++i) {
    to[i] = from[i] - learning_rate * move[i];
  }
  return true;
}

bool SlotUpdates::apply_integers(const SlotSpec& slot, const SlotUpdate& update, const uint8_t* in,
                                 uint8_t* out) const {
  const size_t table = slots_->find(grid_->table);
  kernels::GridUpdate grid = {};
  grid.gradients = update.gradients;
  grid.queries = update.queries;
  grid.learning_rate = update.learning_rate;
  grid.eps = static_cast<float>(grid_->eps);
  grid.seed = update.seed;
  grid.step = update.step;
  grid.tensor_id = slot.tensor_id;
  grid.table = {static_cast<const int32_t*>(slots_->current(table)), log2_of(slots_->spec(table).shape[0])};
  grid.second = grid_->second;
  grid.summed = grid_->summed;
  const kernels::Grid kind = slot.dtype == ZO_UINT8 ? kernels::Grid::kInt4 : kernels::Grid::kInt8;
  const size_t count = slot.trained_values();
  std::atomic<bool> done{true};
  in_pieces(count, [&](size_t begin, size_t end) {
    if (!kernels::grid_update(kind, in, begin, end, grid, out)) {
      done = false;
    }
  });
  return done;
}

void SlotUpdates::in_pieces(size_t count, const std::function<void(size_t begin, size_t end)>& body) const {
  parallel_pieces(*engine_, count, body);
}

}  // namespace zoexport
