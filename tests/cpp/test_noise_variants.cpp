// Every variant of the noise that this processor can run gives the bits of the scalar reference, in every kernel, and
// the choice among them is one that runs. Prints which was chosen.
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/zeroth_order.h"
#include "rng/variants.h"

using namespace zoexport;
using rng::NoiseBlocks;
using rng::Stream;
using rng::Variant;

namespace {

constexpr size_t kSizes[] = {0, 1, 3, 4, 255, 256, 257, 9216};
constexpr uint64_t kSeeds[] = {0, 7, 0xFEDCBA9876543210u, ~uint64_t{0}};
constexpr size_t kGuard = 8;
constexpr float kUntouched = 12345.0f;

// n floats that begin at no multiple of a vector's size (nor of 8 bytes), between guards that are never to change.
struct Unaligned {
  explicit Unaligned(size_t n) : size(n), values(n + 2 * kGuard + 1, kUntouched) {}
  float* data() { return values.data() + kGuard + 1; }
  bool guards_hold() {
    for (size_t i = 0; i < kGuard; ++i) {
      if (data()[-1 - static_cast<ptrdiff_t>(i)] != kUntouched || values[values.size() - 1 - i] != kUntouched) {
        return false;
      }
    }
    return true;
  }
  bool equals(Unaligned& other) {
    return size == other.size && guards_hold() && other.guards_hold() &&
           (size == 0 || std::memcmp(data(), other.data(), size * sizeof(float)) == 0);
  }
  size_t size;
  std::vector<float> values;
};

Unaligned slot_values(size_t n) {
  Unaligned values(n);
  rng::normals(Stream{99, 1, 0, 0}, 0, n, values.data());
  for (size_t i = 5; i < n; i += 64) {
    values.data()[i] = i % 128 == 5 ? -0.0f : std::numeric_limits<float>::denorm_min();
  }
  return values;
}

void blocks_are_the_reference(const Variant& variant) {
  for (const uint64_t seed : kSeeds) {
    // The last ones begin at the end of the counter, and wrap.
    for (const uint32_t first : {0u, 1u, 64u, 0x7FFFFFE0u, 0xFFFFFFC0u, 0xFFFFFFFFu}) {
      for (const Stream& stream :
           {Stream{seed, 0, 0, 0}, Stream{seed, 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu}, Stream{seed, 3, 4, 5}}) {
        Unaligned expected(rng::kElements), found(rng::kElements);
        rng::normal_blocks(stream, first, expected.data());
        variant.normal_blocks(stream, first, found.data());
        CHECK(found.equals(expected));
        rng::sign_blocks(stream, first, expected.data());
        variant.sign_blocks(stream, first, found.data());
        CHECK(found.equals(expected));
      }
    }
  }
}

// Two million normals: many mantissas, every quadrant, and words near both ends.
void long_streams_are_the_reference(const Variant& variant) {
  float expected[rng::kElements], found[rng::kElements];
  bool same = true;
  for (uint32_t first = 0; first < 500000; first += rng::kBlocks) {
    rng::normal_blocks(Stream{11, 2, 1, 3}, first, expected);
    variant.normal_blocks(Stream{11, 2, 1, 3}, first, found);
    same = same && std::memcmp(expected, found, sizeof(expected)) == 0;
  }
  CHECK(same);
}

void update_is_the_reference(const Variant& variant, size_t n, size_t q, uint64_t seed) {
  std::vector<float> g(q);
  rng::normals(Stream{5, 0, 0, 0}, 0, q, g.data());
  Unaligned master = slot_values(n);
  Unaligned expected(n), found(n);
  CHECK(kernels::zo_update(master.data(), n, g.data(), q, 1e-2f, seed, 12, 5, expected.data(), rng::normal_blocks));
  CHECK(kernels::zo_update(master.data(), n, g.data(), q, 1e-2f, seed, 12, 5, found.data(), variant.normal_blocks));
  CHECK(found.equals(expected));
  CHECK(kernels::zo_update(master.data(), n, g.data(), q, 1e-2f, seed, 12, 5, master.data(), variant.normal_blocks));
  CHECK(master.equals(expected));
  CHECK(kernels::zo_update(master.data(), n, g.data(), q, 1e-2f, seed, 12, 5, expected.data(), rng::sign_blocks));
  CHECK(kernels::zo_update(master.data(), n, g.data(), q, 1e-2f, seed, 12, 5, found.data(), variant.sign_blocks));
  CHECK(found.equals(expected));
}

void perturbation_is_the_reference(const Variant& variant, size_t n, size_t q, uint64_t seed) {
  Unaligned master = slot_values(n);
  const uint32_t queries = static_cast<uint32_t>(q);
  Unaligned expected(2 * q * n), found(2 * q * n);
  kernels::zo_perturb(master.data(), n, 1e-3f, seed, 12, 5, queries, expected.data(), rng::normal_blocks);
  kernels::zo_perturb(master.data(), n, 1e-3f, seed, 12, 5, queries, found.data(), variant.normal_blocks);
  CHECK(found.equals(expected));
  Unaligned one(n), other(n);
  kernels::zo_perturb_one(master.data(), n, -1e-3f, seed, 12, queries - 1, 5, one.data(), rng::normal_blocks);
  kernels::zo_perturb_one(master.data(), n, -1e-3f, seed, 12, queries - 1, 5, other.data(), variant.normal_blocks);
  CHECK(other.equals(one));
  Unaligned sided((q + 1) * n), same((q + 1) * n);
  kernels::zo_perturb_forward(master.data(), n, 1e-3f, seed, 12, 5, queries, sided.data(), rng::sign_blocks);
  kernels::zo_perturb_forward(master.data(), n, 1e-3f, seed, 12, 5, queries, same.data(), variant.sign_blocks);
  CHECK(same.equals(sided));
}

void the_choice_runs() {
  const std::vector<Variant>& all = rng::variants();
  CHECK(all.back().name == std::string("scalar") && all.back().runs_here);
  CHECK(all.back().sign_blocks == NoiseBlocks{rng::sign_blocks});
  CHECK(all.back().normal_blocks == NoiseBlocks{rng::normal_blocks});
  CHECK(rng::fastest().runs_here);
  for (const Variant& variant : all) {
    // Nothing that runs and comes earlier was passed over.
    if (&variant == &rng::fastest()) {
      break;
    }
    CHECK(!variant.runs_here);
  }
  // A processor that can run fewer and fewer of them.
  std::vector<Variant> fewer = all;
  for (size_t i = 0; i + 1 < fewer.size(); ++i) {
    for (Variant& variant : fewer) {
      variant.runs_here = true;
    }
    for (size_t j = 0; j <= i; ++j) {
      fewer[j].runs_here = false;
    }
    CHECK(&rng::fastest(fewer) == &fewer[i + 1]);
  }
#if defined(__aarch64__)
  CHECK(rng::fastest().name == std::string("neon"));
#endif
}

}  // namespace

int main() {
  the_choice_runs();
  for (const Variant& variant : rng::variants()) {
    if (!variant.runs_here) {
      std::printf("%s: does not run here\n", variant.name);
      continue;
    }
    std::printf("%s: compared%s\n", variant.name, &variant == &rng::fastest() ? ", chosen" : "");
    blocks_are_the_reference(variant);
    long_streams_are_the_reference(variant);
    for (const size_t n : kSizes) {
      for (size_t q = 1; q <= 5; ++q) {
        for (const uint64_t seed : kSeeds) {
          update_is_the_reference(variant, n, q, seed);
          perturbation_is_the_reference(variant, n, q, seed);
        }
      }
    }
  }
  return check::result();
}
