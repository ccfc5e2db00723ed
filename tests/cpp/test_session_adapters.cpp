// An adapter's files: their bytes by hand, the order of rows, numbers of fewer bits, and what a failure leaves.
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/half.h"
#include "manifests.h"
#include "session/adapters/gguf_writer.h"
#include "session/adapters/peft_reader.h"
#include "session/adapters/peft_writer.h"
#include "session/manifest/manifest.h"
#include "session/storage/files.h"
#include "session/storage/output.h"
#include "session/storage/safetensors.h"

using namespace zoexport;

namespace {

// A folder that is removed at the end.
struct Folder {
  char path[32] = "/tmp/zoexport-test-XXXXXX";
  Folder() { CHECK(::mkdtemp(path) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const std::string& name) const { return join(path, name); }
  size_t entries() const { return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path), {})); }
};

std::string content(const std::string& path) {
  const auto found = read_file(path, ZO_STATE_ERROR);
  CHECK(found.ok());
  return found.ok() ? *found : "";
}

MatrixValues counting(size_t count, float first) {
  return [=](float* values) {
    for (size_t i = 0; i < count; ++i) {
      values[i] = first + static_cast<float>(i);
    }
  };
}

// A (inputs, rank) from 0 on, and B (rank, outputs) from 100 on, row-major.
AdapterLayer layer_of(const std::string& module, uint64_t inputs, uint64_t rank, uint64_t outputs) {
  AdapterLayer layer;
  layer.module = module;
  layer.llama_cpp.weight = module;
  layer.inputs = inputs;
  layer.rank = rank;
  layer.outputs = outputs;
  layer.a = counting(inputs * rank, 0);
  layer.b = counting(rank * outputs, 100);
  return layer;
}

template <typename Number>
void put(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

std::string floats(const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) {
    put(bytes, value);
  }
  return bytes;
}

void test_peft() {
  const Folder folder;
  const std::string path = folder.file("peft");
  CHECK(write_peft({layer_of("m", 3, 2, 1)}, "{\"r\": 2}\n", path, false).ok());
  CHECK(content(join(path, "adapter_config.json")) == "{\"r\": 2}\n");
  std::string header = R"({"__metadata__":{"format":"pt"},)"
                       R"("base_model.model.m.lora_A.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                       R"("base_model.model.m.lora_B.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[24,32]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string expected;
  put(expected, uint64_t{header.size()});
  expected += header + floats({0, 2, 4, 1, 3, 5, 100, 101});
  CHECK(content(join(path, "adapter_model.safetensors")) == expected);
  CHECK(SafeTensors::open(join(path, "adapter_model.safetensors"), ZO_STATE_ERROR).ok());
}

std::string text_of(const std::string& text) {
  std::string bytes;
  put(bytes, uint64_t{text.size()});
  return bytes + text;
}

std::string padded(std::string bytes) {
  bytes.resize((bytes.size() + 31) / 32 * 32, '\0');
  return bytes;
}

void test_gguf() {
  const Folder folder;
  const std::string path = folder.file("a.gguf");
  CHECK(write_gguf({layer_of("w", 3, 2, 1)}, {"llama", "base", 4.5F, ZO_OUTTYPE_F32}, path, false).ok());
  std::string expected = "GGUF";
  put(expected, uint32_t{3});
  put(expected, uint64_t{2});
  put(expected, uint64_t{8});
  const auto text = [&](const std::string& name, const std::string& value) {
    expected += text_of(name);
    put(expected, uint32_t{8});
    expected += text_of(value);
  };
  const auto number = [&](const std::string& name, uint32_t value) {
    expected += text_of(name);
    put(expected, uint32_t{4});
    put(expected, value);
  };
  text("general.architecture", "llama");
  text("general.type", "adapter");
  number("general.file_type", 0);
  number("general.quantization_version", 2);
  number("general.base_model.count", 1);
  text("general.base_model.0.name", "base");
  text("adapter.type", "lora");
  expected += text_of("adapter.lora.alpha");
  put(expected, uint32_t{6});
  put(expected, 4.5F);
  const auto tensor = [&](const std::string& name, uint64_t columns, uint64_t rows, uint64_t offset) {
    expected += text_of(name);
    put(expected, uint32_t{2});
    put(expected, columns);
    put(expected, rows);
    put(expected, uint32_t{0});
    put(expected, offset);
  };
  tensor("w.lora_a", 3, 2, 0);
  tensor("w.lora_b", 2, 1, 32);
  expected = padded(expected);
  expected += padded(floats({0, 2, 4, 1, 3, 5}));
  expected += padded(floats({100, 101}));
  CHECK(content(path) == expected);
}

// The rows of B in a file, of rank 1, as they were numbered.
std::vector<int> rows_of(const RowOrder& order, uint64_t outputs) {
  const Folder folder;
  AdapterLayer layer = layer_of("w", 1, 1, outputs);
  layer.b = counting(outputs, 0);
  layer.llama_cpp.order = order;
  const std::string path = folder.file("a.gguf");
  if (!write_gguf({layer}, {"llama", "", 1, ZO_OUTTYPE_F32}, path, false).ok()) {
    CHECK(folder.entries() == 0);
    return {};
  }
  const std::string bytes = content(path);
  const size_t begin = bytes.size() - (outputs * sizeof(float) + 31) / 32 * 32;
  std::vector<int> rows;
  for (size_t i = 0; i < outputs; ++i) {
    float value;
    std::memcpy(&value, &bytes[begin + i * sizeof(float)], sizeof(value));
    rows.push_back(static_cast<int>(value));
  }
  return rows;
}

void test_orders() {
  CHECK((rows_of({}, 3) == std::vector<int>{0, 1, 2}));
  CHECK((rows_of({2, 0, 0}, 8) == std::vector<int>{0, 2, 1, 3, 4, 6, 5, 7}));
  CHECK((rows_of({1, 0, 0}, 6) == std::vector<int>{0, 3, 1, 4, 2, 5}));
  // Two groups of two queries, a key and a value, each of one row; one group of heads of two rows.
  CHECK((rows_of({0, 2, 1}, 8) == std::vector<int>{0, 1, 4, 5, 2, 6, 3, 7}));
  CHECK((rows_of({0, 1, 2}, 6) == std::vector<int>{0, 1, 2, 3, 4, 5}));
  for (const RowOrder& order : {RowOrder{3, 0, 0}, RowOrder{0, 2, 2}, RowOrder{0, 8, 1}, RowOrder{2, 2, 1},
                                RowOrder{0, 1, 0}, RowOrder{0, UINT32_MAX, UINT32_MAX}}) {
    CHECK(rows_of(order, 8).empty());
  }
}

// The bytes of A, one row of 32 numbers, in a file of this type; nothing where it is refused.
std::string encoded(const std::vector<float>& values, int32_t outtype, size_t bytes, Failure* failure = nullptr) {
  const Folder folder;
  AdapterLayer layer = layer_of("w", values.size(), 1, 1);
  layer.a = [&](float* out) { std::memcpy(out, values.data(), values.size() * sizeof(float)); };
  const std::string path = folder.file("a.gguf");
  const Status written = write_gguf({layer}, {"llama", "", 1, outtype}, path, false);
  if (!written.ok()) {
    CHECK(folder.entries() == 0);
    if (failure != nullptr) {
      *failure = written.failure();
    }
    return {};
  }
  const std::string found = content(path);
  return found.substr(found.size() - 32 - (bytes + 31) / 32 * 32, bytes);  // B's padded number comes last
}

void test_fewer_bits() {
  std::vector<float> values(32);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i) - 15.5F;
  }
  values[0] = 127;
  std::string halves;
  std::string block;
  put(block, kernels::float_to_half(1));
  for (const float value : values) {
    put(halves, kernels::float_to_half(value));
    put(block, static_cast<int8_t>(value < 0 ? value - 0.5F : value == 127 ? 127 : value + 0.5F));
  }
  CHECK(encoded(values, ZO_OUTTYPE_F16, halves.size()) == halves);
  CHECK(encoded(values, ZO_OUTTYPE_Q8_0, block.size()) == block);
  // A block of zeros, and one whose scale has no inverse.
  const std::string zeros(34, '\0');
  CHECK(encoded(std::vector<float>(32, 0), ZO_OUTTYPE_Q8_0, zeros.size()) == zeros);
  CHECK(encoded(std::vector<float>(32, 1e-43F), ZO_OUTTYPE_Q8_0, zeros.size()) == zeros);
  Failure failure;
  values[3] = 65520;
  CHECK(encoded(values, ZO_OUTTYPE_F16, 1, &failure).empty());
  CHECK(failure.code == ZO_INVALID_ARGUMENT && failure.where == "outtype 'f16'" &&
        failure.found == "65520 in w.lora_a");
  CHECK(!encoded(values, ZO_OUTTYPE_Q8_0, 34).empty());
  values[3] = -65520 * 127.0F;
  CHECK(encoded(values, ZO_OUTTYPE_Q8_0, 1, &failure).empty());
  CHECK(failure.where == "outtype 'q8_0'");
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    values[3] = bad;
    for (const int32_t outtype : {ZO_OUTTYPE_F32, ZO_OUTTYPE_F16, ZO_OUTTYPE_Q8_0}) {
      CHECK(encoded(values, outtype, 1, &failure).empty());
      CHECK(failure.found == "values that are not finite");
    }
  }
}

void test_refusals() {
  const Folder folder;
  const std::string path = folder.file("out");
  const auto refused = [&](const std::vector<AdapterLayer>& layers, const std::string& found) {
    const Status peft = write_peft(layers, "{}", path, false);
    const Status gguf = write_gguf(layers, {"llama", "", 1, ZO_OUTTYPE_F32}, path, false);
    CHECK(!peft.ok() && peft.failure().found.find(found) != std::string::npos);
    CHECK(!gguf.ok() && gguf.failure().found.find(found) != std::string::npos);
    CHECK(folder.entries() == 0);
  };
  refused({}, "no layers");
  refused({layer_of("m", 0, 1, 1)}, "1 outputs of 0 inputs");
  refused({layer_of("m", 1, UINT64_MAX, 2)}, "with rank 18446744073709551615");
  refused({layer_of("m", 1, 1, 1), layer_of("m", 2, 1, 1)}, "two tensors");
  refused({layer_of("\xFF", 1, 1, 1)}, "no UTF-8");
}

void test_output() {
  const Folder folder;
  const std::string path = folder.file("a/b/out");
  {
    auto output = Output::at(path + "//", false);
    CHECK(output.ok());
    CHECK(output->write("x", [](OutputFile& file) { return file.write("1", 1); }).ok());
    CHECK(!exists(path));
    auto moved = std::move(*output);
    CHECK(moved.become_folder().ok());
  }
  CHECK(content(path + "/x") == "1");
  CHECK(!Output::at(path, false).ok());
  {
    // What fails half-way, or is given up, leaves what was there.
    auto output = Output::at(path, true);
    CHECK(output.ok());
    const Status failed = output->write("x", [](OutputFile& file) -> Status {
      CHECK(file.write("2", 1).ok());
      return Failure{ZO_INVALID_ARGUMENT, "here", "", "", ""};
    });
    CHECK(!failed.ok() && failed.failure().where == "here");
    CHECK(output->write("y", [](OutputFile& file) { return file.write("2", 1); }).ok());
  }
  CHECK(content(path + "/x") == "1" && !exists(path + "/y"));
  {
    auto output = Output::at(path, true);
    CHECK(output->write("y", [](OutputFile& file) { return file.write("3", 1); }).ok());
    CHECK(output->become_folder().ok());
  }
  CHECK(content(path + "/y") == "3" && !exists(path + "/x"));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.file("a/b")), {}) == 1);
  // Where nothing can be written.
  const auto below = Output::at(path + "/y/z", false);
  CHECK(!below.ok() && below.failure().code == ZO_INVALID_ARGUMENT &&
        below.failure().where == "output " + path + "/y/z");
}

void test_manifest() {
  const auto read = [](const std::string& model) {
    const std::string body = manifests::manifest_body() + R"(,"model":{"llama_cpp":)" + model + "}";
    return parse_manifest(manifests::with_id(body), "m");
  };
  const auto found = read(R"({"architecture":"llama","layers":{"m":{"weight":"w","order":{"pairs":3}},)"
                          R"("n":{"weight":"v","order":{"groups":2,"width":4}},"o":{"weight":"u"}}})");
  CHECK(found.ok() && found->llama_cpp->problem.empty() && found->llama_cpp->architecture == "llama");
  const auto& layers = found->llama_cpp->layers;
  CHECK(layers.size() == 3 && layers.at("m").weight == "w" && layers.at("m").order.pairs == 3);
  CHECK(layers.at("n").order.groups == 2 && layers.at("n").order.width == 4 && layers.at("o").order.groups == 0);
  const auto none = read(R"({"problem":"why"})");
  CHECK(none.ok() && none->llama_cpp->problem == "why");
  const auto old = parse_manifest(manifests::with_id(manifests::manifest_body()), "m");
  CHECK(old.ok() && !old->llama_cpp);
  for (const char* bad : {"3", "[]", "{}", R"({"problem":""})", R"({"problem":4})", R"({"architecture":"a"})",
                          R"({"architecture":"a","layers":[]})", R"({"architecture":"a","layers":{"m":"w"}})",
                          R"({"architecture":"a","layers":{"m":{}}})", R"({"architecture":"","layers":{}})",
                          R"({"architecture":"a","layers":{"m":{"weight":""}}})",
                          R"({"architecture":"a","layers":{"m":{"weight":"w","order":{}}}})",
                          R"({"architecture":"a","layers":{"m":{"weight":"w","order":{"pairs":0}}}})",
                          R"({"architecture":"a","layers":{"m":{"weight":"w","order":{"pairs":1.5}}}})",
                          R"({"architecture":"a","layers":{"m":{"weight":"w","order":{"groups":2}}}})",
                          R"({"architecture":"a","layers":{"m":{"weight":"w","order":{"groups":2,"width":-1}}}})"}) {
    CHECK(!read(bad).ok());
  }
}

}  // namespace

int main() {
  test_peft();
  test_gguf();
  test_orders();
  test_fewer_bits();
  test_refusals();
  test_output();
  test_manifest();
  return check::result();
}
