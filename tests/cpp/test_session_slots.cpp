// Slots of float32, float16 and integers: where their values lie, what they become as float32, files, and updates.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/grid.h"
#include "rng/variants.h"
#include "session/state/slot_values.h"
#include "session/state/slots.h"
#include "session/storage/files.h"
#include "session/train/slot_updates.h"

using namespace zoexport;

namespace {

struct Folder {
  Folder() { path = ::mkdtemp(name); }
  ~Folder() { (void)std::system(("rm -r " + path).c_str()); }
  char name[32] = "/tmp/zoexport-slots-XXXXXX";
  std::string path;
};

SlotSpec slot(const std::string& name, int32_t dtype, uint64_t elements, const char* role = "trainable") {
  SlotSpec spec;
  spec.name = name;
  spec.role = role;
  spec.dtype = dtype;
  spec.shape = {static_cast<int64_t>(elements)};
  spec.tensor_id = 9;
  spec.elements = elements;
  return spec;
}

Result<Slots> load_slots(const std::vector<SlotSpec>& specs, const std::string& path) {
  ZO_ASSIGN(file, OpenFile::open(path, ZO_BUNDLE_ERROR));
  return Slots::load(specs, file, 0);
}

// A half by the definition: sign, exponent, fraction.
double half_value(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const double fraction = half & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1 + fraction / 1024, exponent - 15);
  return half >> 15 != 0 ? -magnitude : magnitude;
}

bool finite(uint16_t half) { return ((half >> 10) & 31) != 31; }

void test_conversions() {
  const SlotSpec spec = slot("h", ZO_FLOAT16, 65536);
  std::vector<uint16_t> halves(65536), back(65536);
  std::vector<float> floats(65536);
  for (size_t i = 0; i < halves.size(); ++i) {
    halves[i] = static_cast<uint16_t>(i);
  }
  read_values(spec, halves.data(), floats.data());
  write_values(spec, floats.data(), back.data());
  for (size_t i = 0; i < halves.size(); ++i) {
    const auto half = static_cast<uint16_t>(i);
    if (finite(half)) {
      CHECK(double{floats[i]} == half_value(half) && back[i] == half);
    } else {
      CHECK((half & 1023) == 0 ? std::isinf(floats[i]) && back[i] == half : std::isnan(floats[i]));
    }
  }
  // Half-way between two neighbours: the even one; a little to either side: the nearer one.
  const SlotSpec one = slot("h", ZO_FLOAT16, 1);
  for (uint32_t i = 0; i + 1 < 0x7C00; ++i) {
    const auto low = static_cast<uint16_t>(i);
    const auto middle = static_cast<float>((half_value(low) + half_value(static_cast<uint16_t>(i + 1))) / 2);
    const float values[3] = {std::nextafter(middle, 0.0f), middle,
                             std::nextafter(middle, std::numeric_limits<float>::max())};
    const uint32_t expected[3] = {i, i + i % 2, i + 1};
    for (int k = 0; k < 3; ++k) {
      uint16_t found = 0;
      write_values(one, &values[k], &found);
      CHECK(found == expected[k]);
    }
  }
}

void test_memory_and_files() {
  const Folder folder;
  const std::string path = join(folder.path, "adapter.safetensors");
  const std::vector<SlotSpec> specs = {slot("a", ZO_FLOAT16, 3), slot("b", ZO_FLOAT32, 2), slot("c", ZO_FLOAT16, 1001),
                                       slot("d", ZO_FLOAT16, 4, "frozen")};
  const std::vector<uint16_t> halves(1001, 0x3555);
  const float floats[2] = {1.5f, -2.0f};
  CHECK(write_safetensors(path,
                          {{"a", ZO_FLOAT16, {3}, halves.data(), 6},
                           {"b", ZO_FLOAT32, {2}, floats, 8},
                           {"c", ZO_FLOAT16, {1001}, halves.data(), 2002},
                           {"d", ZO_FLOAT16, {4}, halves.data(), 8}},
                          {})
            .ok());
  auto loaded = load_slots(specs, path);
  if (!CHECK(loaded.ok())) {
    return;
  }
  Slots& slots = *loaded;
  // Two bytes an element; what follows begins at a multiple of its own elements.
  CHECK(slots.offset(0) == 0 && slots.offset(1) == 8 && slots.offset(2) == 16);
  CHECK(slots.copy_bytes() == 16 + 2 * 1001);
  slots.hold(TwoCopies(slots.copy_bytes()), /*keep=*/false);
  CHECK(std::memcmp(slots.current(2), halves.data(), 2002) == 0);
  CHECK(std::memcmp(slots.current(1), floats, 8) == 0);
  CHECK(static_cast<uint8_t*>(slots.next(2)) - static_cast<uint8_t*>(slots.next(0)) == 16);
  const uint16_t other[4] = {1, 2, 3, 4};
  slots.set(0, other);
  slots.set(3, other);
  CHECK(std::memcmp(slots.current(0), other, 6) == 0 && std::memcmp(slots.current(3), other, 8) == 0);
  CHECK(std::memcmp(slots.current(1), floats, 8) == 0 && std::memcmp(slots.bundled(3), halves.data(), 8) == 0);

  const std::string snapshot = join(folder.path, "snapshot");
  CHECK(write_safetensors(snapshot, slots.to_write(SlotKind::kTrainable), {}).ok());
  const auto file = SafeTensors::open(snapshot, ZO_STATE_ERROR);
  CHECK(file.ok() && file->tensors().size() == 3 && file->find("c")->dtype == "F16" && file->find("b")->dtype == "F32");
  slots.set(0, halves.data());
  CHECK(file.ok() && slots.set_from(*file, SlotKind::kTrainable, snapshot).ok());
  CHECK(std::memcmp(slots.current(0), other, 6) == 0);

  std::vector<SlotSpec> wide = specs;
  wide[2].dtype = ZO_FLOAT32;
  const auto refused = load_slots(wide, path);
  CHECK(!refused.ok() && refused.failure().expected == "the float32 value of that slot");
  wide = specs;
  wide[1].dtype = ZO_FLOAT16;
  CHECK(!load_slots(wide, path).ok());
}

// Lends threads that do the ranges out of order, and counts them.
struct Ranges : Engine {
  Status load(const ProgramSpec&) override { return {}; }
  Status run(const ProgramSpec&, const std::vector<Tensor>&, const std::vector<Tensor>&) override { return {}; }
  void parallel(size_t count, size_t grain, const std::function<void(size_t, size_t)>& body) override {
    for (size_t begin = (count - 1) / grain * grain; begin < count; begin -= grain) {
      body(begin, std::min(begin + grain, count));
      ++calls;
    }
  }
  size_t calls = 0;
};

// The update of a half is that of its float, rounded once.
void test_updates() {
  constexpr size_t kElements = 37;
  const SlotSpec half = slot("h", ZO_FLOAT16, kElements), full = slot("f", ZO_FLOAT32, kElements);
  std::vector<float> values(kElements), updated(kElements);
  std::vector<uint16_t> halves(kElements), expected(kElements), found(kElements);
  rng::normals({3, 1, 0, 0}, 0, kElements, values.data(), rng::fastest().normal_blocks);
  write_values(half, values.data(), halves.data());
  read_values(half, halves.data(), values.data());
  const std::vector<float> gradients = {0.5f, -1.25f};
  const Folder folder;
  const std::string path = join(folder.path, "adapter.safetensors");
  CHECK(write_safetensors(path, {{"h", ZO_FLOAT16, {kElements}, halves.data(), 2 * kElements}}, {}).ok());
  const auto slots = load_slots({half}, path);
  if (!CHECK(slots.ok())) {
    return;
  }
  Ranges engine;
  const SlotUpdates updates({}, *slots, engine);
  const SlotUpdate update{gradients.data(), 2, 0.3f, 77, 5};
  CHECK(updates.apply(full, update, values.data(), updated.data()));
  write_values(half, updated.data(), expected.data());
  CHECK(updates.apply(half, update, halves.data(), found.data()));
  CHECK(found == expected && found != halves);
  CHECK(updates.apply(half, update, halves.data(), halves.data()) && halves == expected);
  // Nothing pending: every bit stays, a signalling NaN's too.
  const std::vector<float> none = {0.0f, -0.0f};
  halves[0] = 0x7D01;
  CHECK(updates.apply(half, {none.data(), 2, 0.3f, 77, 0}, halves.data(), found.data()) && found == halves);
  CHECK(!updates.apply(half, {gradients.data(), 2, 0.3f, 77, 0}, halves.data(), found.data()) && found == halves);
  CHECK(!updates.apply(half, {gradients.data(), 0, 0.3f, 77, 5}, halves.data(), found.data()));
}

// Integers begin at multiples of 64 bytes, so that copies of them do, and are safetensors of their own dtype.
void test_integers_in_memory_and_files() {
  const Folder folder;
  const std::string path = join(folder.path, "adapter.safetensors");
  SlotSpec table = slot("t", ZO_INT32, 8, "frozen");
  const std::vector<SlotSpec> specs = {slot("a", ZO_UINT8, 3), slot("b", ZO_INT8, 70), table};
  const std::vector<uint8_t> bytes(70, 0x9B);
  const int32_t entries[8] = {1, -2, 3, -4, 5, -6, 7, -8};
  CHECK(write_safetensors(path,
                          {{"a", ZO_UINT8, {3}, bytes.data(), 3},
                           {"b", ZO_INT8, {70}, bytes.data(), 70},
                           {"t", ZO_INT32, {8}, entries, 32}},
                          {})
            .ok());
  auto loaded = load_slots(specs, path);
  if (!CHECK(loaded.ok())) {
    return;
  }
  Slots& slots = *loaded;
  CHECK(slots.offset(0) == 0 && slots.offset(1) == 64 && slots.copy_bytes() == 64 + 128);
  CHECK(specs[0].trained_values() == 6 && specs[1].trained_values() == 70);
  CHECK(slots.current(1) == slots.bundled(1));
  auto file = WorkFile::unnamed(folder.path, slots.copy_bytes());
  if (!CHECK(file.ok())) {
    return;
  }
  slots.hold(TwoCopies(std::move(*file), 0), /*keep=*/false);
  CHECK(reinterpret_cast<uintptr_t>(slots.next(1)) % 64 == 0);
  CHECK(std::memcmp(slots.current(1), bytes.data(), 70) == 0 && std::memcmp(slots.current(2), entries, 32) == 0);
  const uint8_t other[3] = {1, 2, 3};
  slots.set(0, other);
  const std::string snapshot = join(folder.path, "snapshot");
  CHECK(write_safetensors(snapshot, slots.to_write(SlotKind::kTrainable), {}).ok());
  const auto read = SafeTensors::open(snapshot, ZO_STATE_ERROR);
  CHECK(read.ok() && read->tensors().size() == 2 && read->find("a")->dtype == "U8" && read->find("b")->dtype == "I8");
  slots.set(0, bytes.data());
  CHECK(read.ok() && slots.set_from(*read, SlotKind::kTrainable, snapshot).ok());
  CHECK(std::memcmp(slots.current(0), other, 3) == 0);
}

// The session deals integers over threads; the result is that of the kernel over all of them.
void test_updates_of_integers() {
  const Folder folder;
  const std::string path = join(folder.path, "adapter.safetensors");
  constexpr size_t kRows = 31, kColumns = 10001;  // an odd number of INT8, no multiple of a piece
  Manifest manifest;
  manifest.grid = GridSpec{"t", 0.25, true};
  manifest.slots = {slot("a", ZO_UINT8, kRows * kColumns), slot("b", ZO_INT8, kRows * kColumns),
                    slot("t", ZO_INT32, 16, "frozen")};
  manifest.slots[2].shape = {8, 2};
  std::vector<uint8_t> codes(kRows * kColumns);
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<uint8_t>(i * 7);
  }
  int32_t table[16];
  for (int i = 0; i < 8; ++i) {
    table[2 * i] = 1 << 30;
    table[2 * i + 1] = static_cast<int32_t>(0xFF01FF00u + static_cast<uint32_t>(i % 3) * 0x0102u);
  }
  const auto count = static_cast<int64_t>(codes.size());
  CHECK(write_safetensors(path,
                          {{"a", ZO_UINT8, {count}, codes.data(), codes.size()},
                           {"b", ZO_INT8, {count}, codes.data(), codes.size()},
                           {"t", ZO_INT32, {8, 2}, table, sizeof(table)}},
                          {})
            .ok());
  const auto slots = load_slots(manifest.slots, path);
  if (!CHECK(slots.ok())) {
    return;
  }
  const std::vector<float> gradients = {0.5f, -1.25f};
  const SlotUpdate update{gradients.data(), 2, 0.3f, 77, 5};
  for (const bool second : {true, false}) {
    manifest.grid->second = second;
    Ranges engine;
    const SlotUpdates updates(manifest, *slots, engine);
    for (const size_t number : {size_t{0}, size_t{1}}) {
      const SlotSpec& spec = manifest.slots[number];
      const auto grid = number == 0 ? kernels::Grid::kInt4 : kernels::Grid::kInt8;
      std::vector<uint8_t> expected(codes.size()), found(codes.size()), place = codes;
      const kernels::GridUpdate whole = {gradients.data(), 2, 0.3f, 0.25f, 77, 5, 9, {table, 3}, second, false};
      CHECK(kernels::grid_update(grid, codes.data(), 0, spec.trained_values(), whole, expected.data()));
      CHECK(updates.apply(spec, update, codes.data(), found.data()) && found == expected && found != codes);
      CHECK(updates.apply(spec, update, place.data(), place.data()) && place == expected);
      CHECK(!updates.apply(spec, {gradients.data(), 2, 0.3f, 77, 0}, codes.data(), found.data()) && found == expected);
    }
    CHECK(engine.calls > 20);
  }
}

}  // namespace

int main() {
  test_conversions();
  test_memory_and_files();
  test_updates();
  test_integers_in_memory_and_files();
  test_updates_of_integers();
  return check::result();
}
