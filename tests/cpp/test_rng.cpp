// The noise specification in C++ against graphs/golden/rng.json.
// Usage: test_rng [path of rng.json]; without one, that of the source tree.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "check.h"
#include "rng/normal.h"
#include "rng/permutation.h"
#include "rng/philox.h"
#include "rng/variants.h"

#ifndef ZOEXPORT_SOURCE_DIR
#define ZOEXPORT_SOURCE_DIR "."
#endif

using nlohmann::json;
using namespace zoexport::rng;

namespace {

uint32_t hex32(const json& text) {
  return static_cast<uint32_t>(std::strtoul(text.get<std::string>().c_str(), nullptr, 16));
}

uint64_t hex64(const json& text) { return std::strtoull(text.get<std::string>().c_str(), nullptr, 16); }

void known_answers(const json& cases) {
  CHECK(cases.size() == 3);
  for (const json& item : cases) {
    uint32_t c[4];
    for (size_t i = 0; i < 4; ++i) {
      c[i] = hex32(item["counter"][i]);
    }
    philox_block(hex32(item["key"][0]), hex32(item["key"][1]), c);
    for (size_t i = 0; i < 4; ++i) {
      CHECK(c[i] == hex32(item["result"][i]));
    }
  }
}

// Both implementations of the rounds, at a counter whose block number wraps.
void blocks_agree() {
  const Stream stream{0x0123456789ABCDEFu, 3, 4, 5};
  const uint32_t first = 0xFFFFFFF0u;
  Words word;
  philox(stream, first, word);
  for (uint32_t i = 0; i < kBlocks; ++i) {
    uint32_t c[4] = {first + i, 3, 4, 5};
    philox_block(0x89ABCDEFu, 0x01234567u, c);
    for (size_t j = 0; j < 4; ++j) {
      CHECK(word.w[j][i] == c[j]);
    }
  }
}

void normals_of(const Variant& variant, const Stream& stream, uint64_t start, const json& expected) {
  std::vector<float> normal(expected.size());
  normals(stream, start, normal.size(), normal.data(), variant.normal_blocks);
  for (size_t i = 0; i < normal.size(); ++i) {
    CHECK(detail::as_bits(normal[i]) == hex32(expected[i]));
    float alone = 0.0f;
    normals(stream, start + i, 1, &alone, variant.normal_blocks);
    CHECK(detail::as_bits(alone) == detail::as_bits(normal[i]));
  }
}

void signs_of(const Variant& variant, const Stream& stream, uint64_t start, const json& expected) {
  std::vector<float> sign(expected.size());
  signs(stream, start, sign.size(), sign.data(), variant.sign_blocks);
  for (size_t i = 0; i < sign.size(); ++i) {
    CHECK(sign[i] == expected[i].get<float>());
    float alone = 0.0f;
    signs(stream, start + i, 1, &alone, variant.sign_blocks);
    CHECK(alone == sign[i]);
  }
}

void streams(const json& cases) {
  CHECK(cases.size() >= 10);
  for (const json& item : cases) {
    const Stream stream{hex64(item["seed"]), item["tensor_id"].get<uint32_t>(), item["query"].get<uint32_t>(),
                        item["step"].get<uint32_t>()};
    const uint64_t start = item["start"].get<uint64_t>();
    const size_t count = item["words"].size();
    std::vector<uint32_t> word(count);
    words(stream, start, count, word.data());
    for (size_t i = 0; i < count; ++i) {
      CHECK(word[i] == hex32(item["words"][i]));
    }
    for (const Variant& variant : variants()) {
      if (variant.runs_here) {
        normals_of(variant, stream, start, item["normals"]);
        signs_of(variant, stream, start, item["signs"]);
      }
    }
  }
}

void masks(const json& cases) {
  CHECK(cases.size() >= 5);
  for (const json& item : cases) {
    const Stream stream{hex64(item["seed"]), item["tensor_id"].get<uint32_t>() | kDropout,
                        item["example"].get<uint32_t>(), item["step"].get<uint32_t>()};
    const double share = std::strtod(item["share"].get<std::string>().c_str(), nullptr);
    std::vector<float> factors(item["factors"].size());
    kept(stream, item["start"].get<uint64_t>(), factors.size(), share, factors.data());
    for (size_t i = 0; i < factors.size(); ++i) {
      CHECK(detail::as_bits(factors[i]) == hex32(item["factors"][i]));
    }
  }
}

void permutations(const json& cases) {
  CHECK(cases.size() >= 5);
  for (const json& item : cases) {
    const std::vector<uint32_t> expected = item["order"].get<std::vector<uint32_t>>();
    CHECK(expected.size() == item["n"].get<uint32_t>());
    std::vector<uint32_t> order(expected.size());
    permutation(hex64(item["seed"]), item["epoch"].get<uint32_t>(), static_cast<uint32_t>(order.size()), order.data());
    CHECK(order == expected);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : ZOEXPORT_SOURCE_DIR "/graphs/golden/rng.json";
  std::ifstream file(path);
  const json golden = json::parse(file, nullptr, false);
  if (!CHECK(!golden.is_discarded())) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    return check::result();
  }
  CHECK(golden["spec"] == kSpecId);
  known_answers(golden["known_answers"]);
  blocks_agree();
  streams(golden["streams"]);
  masks(golden["masks"]);
  permutations(golden["permutations"]);
  return check::result();
}
