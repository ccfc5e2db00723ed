// Levels and updates of trained integers in C++ against graphs/golden/grid.json, in every variant that runs here.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/grid.h"
#include "kernels/grid_kernels.h"

#ifndef ZOEXPORT_SOURCE_DIR
#define ZOEXPORT_SOURCE_DIR "."
#endif

using nlohmann::json;
using namespace zoexport::kernels;
using zoexport::rng::Rounding;
using zoexport::rng::Stream;

namespace {

uint32_t hex32(const std::string& text) { return static_cast<uint32_t>(std::strtoul(text.c_str(), nullptr, 16)); }

uint64_t hex64(const json& text) { return std::strtoull(text.get<std::string>().c_str(), nullptr, 16); }

float float_of(const json& text) {
  const uint32_t bits = hex32(text.get<std::string>());
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

std::vector<int8_t> integers_of(const json& text) {
  std::istringstream words(text.get<std::string>());
  std::vector<int8_t> values;
  for (int value = 0; words >> value;) {
    values.push_back(static_cast<int8_t>(value));
  }
  return values;
}

struct Table {
  std::vector<int32_t> entries;
  uint32_t log2_size;

  explicit Table(const json& item) : log2_size(0) {
    std::istringstream words(item["entries"].get<std::string>());
    for (std::string word; words >> word;) {
      entries.push_back(static_cast<int32_t>(hex32(word)));
    }
    while (size_t{2} << log2_size < entries.size()) {
      ++log2_size;
    }
    CHECK(entries.size() == size_t{2} << log2_size);
  }

  PairTable pairs() const { return {entries.data(), log2_size}; }
};

void draw(const json& item, const Table& table, const GridKernels& kernels) {
  const Stream stream{hex64(item["seed"]), item["tensor_id"].get<uint32_t>(), item["query"].get<uint32_t>(),
                      item["step"].get<uint32_t>()};
  for (const bool second : {false, true}) {
    const std::vector<int8_t> expected = integers_of(item[second ? "second" : "first"]);
    std::vector<int8_t> found(expected.size());
    zoexport::rng::levels(stream, item["start"].get<uint64_t>(), found.size(), table.pairs(),
                          second ? Rounding::kSecond : Rounding::kFirst, found.data(), kernels.draw);
    CHECK(found == expected);
  }
}

std::vector<uint8_t> packed(Grid grid, const std::vector<int8_t>& integers) {
  if (grid == Grid::kInt8) {
    return {integers.begin(), integers.end()};
  }
  std::vector<uint8_t> codes;
  for (size_t i = 0; i < integers.size(); i += 2) {
    codes.push_back(static_cast<uint8_t>((integers[i] + 8) | (integers[i + 1] + 8) << 4));
  }
  return codes;
}

void update(const json& item, const Table& table, const GridKernels& kernels) {
  std::vector<float> gradients;
  for (const json& one : item["gradients"]) {
    gradients.push_back(float_of(one));
  }
  const Grid grid = item["bits"] == 4 ? Grid::kInt4 : Grid::kInt8;
  const std::vector<int8_t> integers = integers_of(item["integers"]);
  const std::vector<uint8_t> codes = packed(grid, integers);
  const GridUpdate given{gradients.data(),
                         gradients.size(),
                         float_of(item["learning_rate"]),
                         float_of(item["eps"]),
                         hex64(item["seed"]),
                         item["step"].get<uint32_t>() + 1,
                         item["tensor_id"].get<uint32_t>(),
                         table.pairs(),
                         item["second"].get<bool>(),
                         item["summed"].get<bool>()};
  std::vector<uint8_t> out(codes.size());
  CHECK(grid_update(grid, codes.data(), 0, integers.size(), given, out.data(), kernels));
  CHECK(out == packed(grid, integers_of(item["moved"])));
  CHECK(out != codes);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : ZOEXPORT_SOURCE_DIR "/graphs/golden/grid.json";
  std::ifstream file(path);
  const json golden = json::parse(file, nullptr, false);
  if (!CHECK(!golden.is_discarded())) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    return check::result();
  }
  std::vector<Table> tables;
  for (const json& item : golden["tables"]) {
    tables.emplace_back(item);
  }
  CHECK(golden["draws"].size() >= 5 && golden["updates"].size() >= 11);
  for (const ProductVariant& variant : product_variants()) {
    if (!variant.runs_here) {
      continue;
    }
    for (const json& item : golden["draws"]) {
      draw(item, tables.at(item["table"].get<size_t>()), *variant.grid);
    }
    for (const json& item : golden["updates"]) {
      update(item, tables.at(item["table"].get<size_t>()), *variant.grid);
    }
  }
  return check::result();
}
