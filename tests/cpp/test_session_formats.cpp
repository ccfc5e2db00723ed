// The files a session reads: hashes, checksums, safetensors, manifests, the trajectory log; whole, torn and damaged.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "check.h"
#include "manifests.h"
#include "session/manifest/canonical.h"
#include "session/manifest/manifest.h"
#include "session/state/state_folder.h"
#include "session/storage/crc32.h"
#include "session/storage/files.h"
#include "session/storage/safetensors.h"
#include "session/storage/sha256.h"
#include "session/storage/trajectory.h"

using namespace zoexport;
using namespace manifests;

namespace {

// A folder that is removed at the end.
struct Folder {
  char path[32] = "/tmp/zoexport-test-XXXXXX";
  Folder() { CHECK(::mkdtemp(path) != nullptr); }
  ~Folder() {
    for (const char* name : {"a", "b"}) {
      ::unlink(file(name).c_str());
    }
    ::rmdir(path);
  }
  std::string file(const std::string& name) const { return join(path, name); }
};

void put(const std::string& path, const std::string& content) {
  // Not write_file: thousands of syncs would take seconds.
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  CHECK(file.write(content.data(), static_cast<std::streamsize>(content.size())).good());
}

void test_sha256() {
  CHECK(sha256_hex("", 0) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc", 3) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  CHECK(sha256_hex(two_blocks.data(), two_blocks.size()) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  const std::string million(1000000, 'a');
  CHECK(sha256_hex(million.data(), million.size()) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  // Both ways, every length around the block size, in uneven pieces.
  std::mt19937 random(1);
  for (size_t length = 0; length < 200; ++length) {
    std::string data(length, '\0');
    for (char& byte : data) {
      byte = static_cast<char>(random());
    }
    Sha256 portable(true);
    portable.update(data.data(), length);
    Sha256 pieces;
    for (size_t at = 0; at < length;) {
      const size_t take = std::min<size_t>(1 + random() % 70, length - at);
      pieces.update(data.data() + at, take);
      at += take;
    }
    CHECK(to_hex(portable.finish()) == to_hex(pieces.finish()));
  }
}

void test_crc32() {
  CHECK(crc32("123456789", 9) == 0xCBF43926u);
  CHECK(crc32("", 0) == 0);
  CHECK(crc32("6789", 4, crc32("12345", 5)) == 0xCBF43926u);
}

void test_canonical_json() {
  const auto text = canonical_json(
      "{ \"b\": [1, 1e-05, 0.50, -0.0, true, null], \"a\": {\"z\": \"\\u00e9\\n\\u2028\", \"y\": []}, \"id\": 3,\n"
      "\"c\": {\"id\": 1}}",
      "id");
  CHECK(text.ok());
  CHECK(text.ok() && *text ==
                         "{\"a\":{\"y\":[],\"z\":\"\xC3\xA9\\n\xE2\x80\xA8\"},"
                         "\"b\":[1,1e-05,0.50,-0.0,true,null],\"c\":{\"id\":1}}");
  CHECK(!canonical_json("{\"a\": ", "id").ok());
  CHECK(!canonical_json(std::string(100000, '['), "id").ok());
}

LogHeader sample_header() { return {std::string(32, '0') + std::string(32, 'f'), 0x8000000000000001u, 2}; }

uint32_t last_crc(const std::string& bytes) {
  uint32_t crc = 0;
  for (size_t i = 0; i < 4; ++i) {
    crc |= uint32_t{static_cast<uint8_t>(bytes[bytes.size() - 4 + i])} << (8 * i);
  }
  return crc;
}

std::string sample_log(size_t records, float loss = 1.0f) {
  std::string log = encode_header(sample_header());
  for (size_t i = 0; i < records; ++i) {
    const auto x = static_cast<float>(i);
    log += encode_record({static_cast<uint32_t>(i), 0.5f, 0.01f, loss + x, {x, -x}}, last_crc(log));
  }
  return log;
}

void test_log_round_trip() {
  const std::string bytes = sample_log(4);
  CHECK(bytes.size() == kLogHeaderBytes + 4 * record_bytes(2) && bytes.size() == log_bytes(4, 2));
  CHECK(std::memcmp(bytes.data(), "ZOLOG\0\0\2", 8) == 0);
  const auto log = parse_log(bytes, "log");
  if (!CHECK(log.ok())) {
    return;
  }
  CHECK(log->header.bundle_id == std::string(32, '0') + std::string(32, 'f'));
  CHECK(log->header.seed == 0x8000000000000001u && log->header.queries == 2);
  CHECK(log->records.size() == 4 && log->valid_bytes == bytes.size() && log->damage.empty());
  CHECK(log->records[3].step == 3 && log->records[3].loss == 4.0f && log->records[3].gradients[1] == -3.0f);
}

void test_log_torn_and_flipped() {
  const size_t record = record_bytes(2);
  const std::string whole = sample_log(3);
  for (size_t size = 0; size <= whole.size(); ++size) {
    const auto log = parse_log(whole.substr(0, size), "log");
    CHECK(log.ok() == (size >= kLogHeaderBytes));
    if (log.ok()) {
      CHECK(log->records.size() == (size - kLogHeaderBytes) / record && log->damage.empty());
      CHECK(log->valid_bytes == kLogHeaderBytes + log->records.size() * record);
    }
  }
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const size_t hit = bit / 8 < kLogHeaderBytes ? 0 : (bit / 8 - kLogHeaderBytes) / record;
    const auto log = parse_log(flipped, "log");
    CHECK(log.ok() == (bit / 8 >= kLogHeaderBytes));
    // Of the last record it may be a torn tail; whole ones behind it are damage, whichever byte it is.
    const auto known = parse_log(flipped, "log", sample_header());
    CHECK(known.ok());
    if (log.ok()) {
      CHECK(log->records.size() == hit && log->damage.empty() == (hit == 2));
    } else {
      CHECK(known->records.size() == 3 && !known->damage.empty());
    }
  }
  // A tail that is longer than a record, and holds none: what a file system may leave of appends.
  CHECK(parse_log(whole + std::string(3 * record + 5, '\0'), "log")->damage.empty());
  // Any number of bytes lost in between, or added.
  for (size_t lost = 1; lost < 2 * record; ++lost) {
    const std::string longer = sample_log(6);
    const std::string gap = longer.substr(0, log_bytes(1, 2) + 3) + longer.substr(log_bytes(1, 2) + 3 + lost);
    const auto log = parse_log(gap, "log");
    CHECK(log->records.size() == 1 && !log->damage.empty());
    const auto added =
        parse_log(longer.substr(0, log_bytes(2, 2)) + std::string(lost, 'x') + longer.substr(log_bytes(2, 2)), "log");
    CHECK(added->records.size() == 2 && !added->damage.empty());
  }
  // Records of another branch of the run fit by step, and not behind those before them.
  const std::string other = sample_log(3, 2.0f);
  const std::string spliced = sample_log(2) + other.substr(log_bytes(2, 2));
  CHECK(parse_log(spliced, "log")->records.size() == 2);
  // A whole record in the wrong place ends the log too.
  const auto log = parse_log(whole.substr(0, kLogHeaderBytes) + whole.substr(kLogHeaderBytes + record), "log");
  CHECK(log.ok() && log->records.empty() && !log->damage.empty());
}

void test_log_file() {
  const Folder folder;
  const std::string path = folder.file("a");
  put(path, sample_log(3) + "torn");
  {
    auto file = LogFile::open(path, *parse_log(*read_file(path, ZO_STATE_ERROR), path));
    CHECK(file.ok());
    CHECK(file->append({3, 0.5f, 0.01f, 4.0f, {3.0f, -3.0f}}).ok());
    CHECK(*read_file(path, ZO_STATE_ERROR) == sample_log(4));
    CHECK(file->cut(1).ok());
    CHECK(file->append({1, 0.5f, 0.01f, 2.0f, {1.0f, -1.0f}}).ok());
    CHECK(file->append({2, 0.5f, 0.01f, 3.0f, {2.0f, -2.0f}}).ok());
  }
  CHECK(*read_file(path, ZO_STATE_ERROR) == sample_log(3));
  CHECK(!LogFile::open(folder.file("none"), *parse_log(sample_log(0), "log")).ok());
}

void test_log_digest() {
  const Folder folder;
  const std::string path = folder.file("a");
  put(path, sample_log(5));
  LogDigest digest;
  for (const size_t records : {0, 2, 5, 1}) {
    const std::string part = sample_log(records);
    CHECK(*digest.of(path, part.size()) == sha256_hex(part.data(), part.size()));
  }
  CHECK(!digest.of(path, sample_log(5).size() + 1).ok());
  put(path, sample_log(5, 9.0f));
  digest.forget();
  CHECK(*digest.of(path, log_bytes(1, 2)) != sha256_hex(sample_log(1).data(), log_bytes(1, 2)));
}

void test_safetensors() {
  const Folder folder;
  const std::string path = folder.file("a");
  const float values[6] = {0, 1, 2, 3, 4, -0.0f};
  const uint16_t halves[3] = {0x3C00, 0x8000, 0x7BFF};
  CHECK(write_safetensors(path,
                          {{"h", ZO_FLOAT16, {3}, halves, 6},
                           {"x", ZO_FLOAT32, {2, 2}, values, 16},
                           {"y", ZO_FLOAT32, {2}, values + 4, 8}},
                          {{"steps", "7"}})
            .ok());
  {
    const auto file = SafeTensors::open(path, ZO_STATE_ERROR);
    if (!CHECK(file.ok())) {
      return;
    }
    CHECK(file->tensors().size() == 3 && file->metadata("steps") == "7" && file->metadata("none").empty());
    CHECK(file->metadata("crc32") == crc_text(file->data_crc()));
    const TensorBytes* y = file->find("y");
    CHECK(y != nullptr && y->dtype == "F32" && y->shape == std::vector<int64_t>{2} && y->bytes == 8);
    CHECK(y != nullptr && std::memcmp(y->data, values + 4, 8) == 0);
    // Behind an odd number of halves in the list, and aligned all the same.
    CHECK(reinterpret_cast<uintptr_t>(y->data) % 4 == 0);
    const TensorBytes* h = file->find("h");
    CHECK(h != nullptr && h->dtype == "F16" && h->bytes == 6 && std::memcmp(h->data, halves, 6) == 0);
  }
  const std::string whole = *read_file(path, ZO_STATE_ERROR);
  for (size_t size = 0; size < whole.size(); ++size) {
    put(path, whole.substr(0, size));
    CHECK(!SafeTensors::open(path, ZO_STATE_ERROR).ok());
  }
  // Damage may go unseen by the header's checks, but never reads outside the file.
  std::mt19937 random(2);
  uint64_t sum = 0;
  for (int round = 0; round < 600; ++round) {
    std::string damaged = whole;
    for (uint32_t i = 0; i < 1 + random() % 4; ++i) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    put(path, damaged);
    const auto file = SafeTensors::open(path, ZO_STATE_ERROR);
    if (file.ok()) {
      for (const auto& [name, tensor] : file->tensors()) {
        CHECK(tensor.bytes <= damaged.size());
        for (size_t i = 0; i < tensor.bytes; ++i) {
          sum += tensor.data[i];
        }
      }
    }
  }
  CHECK(sum > 0);
}

// A byte of the data belongs to one tensor, and every byte to one.
void test_safetensors_places() {
  const Folder folder;
  const std::string path = folder.file("a");
  const auto opens = [&](const std::string& header, const std::string& data) {
    std::string content(8, '\0');
    content[0] = static_cast<char>(header.size());
    put(path, content + header + data);
    return SafeTensors::open(path, ZO_STATE_ERROR).ok();
  };
  const auto tensor = [](const std::string& name, const std::string& offsets, const std::string& dtype = "U8") {
    return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":[2],"data_offsets":)" + offsets + "}";
  };
  CHECK(opens("{" + tensor("b", "[2,4]") + "," + tensor("a", "[0,2]") + "}", "abcd"));
  CHECK(opens(R"({"e":{"dtype":"U8","shape":[0,3],"data_offsets":[0,0]}})", ""));
  CHECK(opens("{}", ""));
  CHECK(!opens("{" + tensor("a", "[1,3]") + "}", "abc"));
  CHECK(!opens("{" + tensor("a", "[0,2]") + "}", "abc"));
  CHECK(!opens("{" + tensor("a", "[0,2]") + "," + tensor("b", "[1,3]") + "}", "abc"));
  CHECK(!opens("{" + tensor("a", "[0,2]") + "," + tensor("b", "[3,5]") + "}", "abcde"));
  CHECK(!opens("{" + tensor("a", "[0,2]", "U7") + "}", "ab"));
  CHECK(!opens(" {" + tensor("a", "[0,2]") + "}", "ab"));
  CHECK(!opens("", ""));
}

void test_manifest() {
  const auto manifest = parse_manifest(with_id(manifest_body()), "manifest");
  if (!CHECK(manifest.ok())) {
    return;
  }
  CHECK(manifest->max_length == 8 && manifest->rows == 2 && manifest->settings.seed() == UINT64_MAX);
  CHECK(manifest->slots.size() == 1 && manifest->slots[0].elements == 6 && manifest->slots[0].tensor_id == 9);
  // A whole model is one stage, which is first and head at once.
  CHECK(manifest->whole() && manifest->queries() == 1 && manifest->stages[0].bind.at("b") == "b");
  CHECK(manifest->program("evaluate", 8) == manifest->program(manifest->stages[0].family(Pass::kEvaluate), 8));
  CHECK(manifest->program(manifest->stages[0].family(Pass::kForward), 8) == manifest->program("train"));

  // Without `evaluate`, `train` does both, and says which labels are likeliest.
  std::string alone = manifest_body();
  alone.replace(alone.find(R"("name":"evaluate")"), std::strlen(R"("name":"evaluate")"), R"("name":"other")");
  const auto lacking = parse_manifest(with_id(alone), "manifest");
  CHECK(!lacking.ok() && lacking.failure().found.find("label_is_argmax") != std::string::npos);

  const struct {
    const char* from;
    const char* to;
    const char* where;
  } changes[] = {
      {R"("rows":2)", R"("rows":0)", "manifest, rows"},
      {R"("rows":2)", R"("rows":3)", "manifest, program evaluate"},
      {R"("max_labels":16)", R"("max_labels":17)", "manifest, program evaluate"},
      {R"("tensor_id":9)", R"("tensor_id":-1)", "manifest, state[0].tensor_id"},
      {R"("shape":[2,3],"tensor_id")", R"("shape":[3,2],"tensor_id")", "manifest, program evaluate"},
      {R"("shape":[2,3],"tensor_id")", R"("shape":[2000000000000,3],"tensor_id")", "manifest, state[0].shape[0]"},
      {R"("learning_rate":0.005)", R"("learning_rate":"fast")", "manifest, settings.learning_rate"},
      {R"("eps":0.01,)", "", "manifest, settings.eps"},
      {R"("learning_rate":0.005)", R"("learning_rate":0)", "manifest, settings.learning_rate"},
      {R"("file":"model.pte")", R"("file":"../model.pte")", "manifest, programs[0].file"},
      {R"("file":"model.pte")", R"("file":"other.pte")", "manifest, program evaluate"},
      {R"("dtype":"float32","shape":[2,3],"tensor_id")", R"("dtype":"float16","shape":[2,3],"tensor_id")",
       "manifest, program evaluate"},
      {R"("dtype":"float32","shape":[2,3],"tensor_id")", R"("dtype":"bfloat16","shape":[2,3],"tensor_id")",
       "manifest, state[0].dtype"},
      {R"("dtype":"int64","shape":[2,8])", R"("dtype":"int65","shape":[2,8])", "manifest, programs[0].inputs[0].dtype"},
      {R"("dtype":"float32","shape":[1)", R"("dtype":"int64","shape":[1)", "manifest, program evaluate"},
      {R"("role":"label_is_argmax")", R"("role":"label_logprobs")", "manifest, program evaluate"},
      {R"("name":"evaluate")", R"("name":"other")", "manifest, program train"},
      {R"("name":"train")", R"("name":"other")", "manifest, programs"},
      {kGradients, "", "manifest, program train"},
      {R"("role":"sign")", R"("role":"signs")", "manifest, program train"},
      {R"("role":"query")", R"("role":"seed")", "manifest, program train"},
      {R"("name":"step","role":"step","dtype":"int64")", R"("name":"step","role":"step","dtype":"float32")",
       "manifest, program train"},
      {kNextB, R"(]}],"rng")", "manifest, program train"},
      {R"("role":"trainable")", R"("role":"frozen")", "manifest, program train"},
      {R"("schema_version":1)", R"("schema_version":7)", "manifest"},
      {R"("target":"android-cpu")", R"("target":["android-cpu"])", "manifest, target"},
  };
  for (const auto& change : changes) {
    std::string body = manifest_body();
    const size_t at = body.find(change.from);
    if (!CHECK(at != std::string::npos)) {
      continue;
    }
    body.replace(at, std::strlen(change.from), change.to);
    const auto refused = parse_manifest(with_id(body), "manifest");
    CHECK(!refused.ok() && refused.failure().code == ZO_BUNDLE_ERROR);
    if (!CHECK(!refused.ok() && refused.failure().where == change.where)) {
      std::fprintf(stderr, "  %s -> %s: %s\n", change.from, change.to,
                   refused.ok() ? "accepted" : refused.failure().where.c_str());
    }
  }
}

// A slot of integers is trained with a grid, and a grid over stages alone.
void test_integer_slots() {
  const auto refused = [](const std::string& role, const std::string& dtype, const std::string& more) {
    std::string body = role == "trainable" ? manifest_body() : replaced(manifest_body(), kNextB, R"(]}],"rng")");
    body = replaced(body, R"("float32","shape":[2,3])", '"' + dtype + R"(","shape":[2,3])");
    body = replaced(body, "\"trainable\"", '"' + role + '"');
    const auto manifest = parse_manifest(with_id(more + body), "manifest");
    return manifest.ok() ? std::string() : manifest.failure().where + ": " + manifest.failure().found;
  };
  const std::string grid = R"("grid":{"table":"t","eps":0.01,"estimator":"q-rge2"},)";
  CHECK(refused("frozen", "int8", "").empty() && refused("frozen", "int32", "").empty());
  CHECK(refused("trainable", "int8", "") == "manifest, grid: nothing, and the trainable int8 slot b");
  CHECK(refused("trainable", "uint8", grid) == "manifest, stages: nothing, but grid");
  CHECK(refused("frozen", "int8", grid) == "manifest, grid: a grid without a trainable slot of uint8 or int8");
  CHECK(refused("trainable", "int32", "") == "manifest, state[0].dtype: \"int32\"");
  const std::string other = R"("grid":{"table":"t","eps":0.01,"estimator":"rge"},)";
  CHECK(refused("trainable", "int8", other) == "manifest, grid.estimator: \"rge\"");
}

void test_snapshots() {
  // Few values; SmolLM2-135M's integers with 4 queries; a hundred times as many.
  CHECK(snapshot_every(0) == 100 && snapshot_every(1000000) == 100);
  CHECK(snapshot_every(uint64_t{106168320} * 4) == 40 && snapshot_every(uint64_t{10} << 32) == 10);
}

// A slot of halves, which programs read as such; no first-order method keeps them.
void test_half_slots() {
  std::string body = replaced(manifest_body(), R"("float32","shape":[2,3])", R"("float16","shape":[2,3])");
  const auto manifest = parse_manifest(with_id(body), "manifest");
  CHECK(manifest.ok() && manifest->slots[0].dtype == ZO_FLOAT16 && manifest->slots[0].bytes() == 12);
  body = replaced(replaced(body, kGradients, ""), kStep, "");
  const auto refused =
      parse_manifest(with_id(replaced(body, R"("settings":{)", R"("settings":{"optimizer":"sgd",)")), "manifest");
  CHECK(!refused.ok() && refused.failure().where == "manifest, state");
  CHECK(!refused.ok() && refused.failure().found == "the float16 slot b with settings.optimizer and no queries");
}

void test_dtypes() {
  const struct {
    const char* text;
    int32_t dtype;
    size_t bytes;
    const char* stored;
  } known[] = {{"float32", ZO_FLOAT32, 4, "F32"},    {"int64", ZO_INT64, 8, "I64"}, {"uint8", ZO_UINT8, 1, "U8"},
               {"bfloat16", ZO_BFLOAT16, 2, "BF16"}, {"int8", ZO_INT8, 1, "I8"},    {"uint32", ZO_UINT32, 4, "U32"},
               {"float16", ZO_FLOAT16, 2, "F16"},    {"int32", ZO_INT32, 4, "I32"}};
  for (const auto& dtype : known) {
    CHECK(dtype_from_text(dtype.text) == dtype.dtype && dtype_bytes(dtype.dtype) == dtype.bytes);
    CHECK(dtype_text(dtype.dtype) == std::string(dtype.text));
    CHECK(safetensors_dtype(dtype.dtype) == std::string(dtype.stored));
  }
  CHECK(dtype_from_text("float64") == -1 && dtype_from_text("") == -1);
  CHECK(dtype_texts() == "float32, int64, uint8, bfloat16, int8, uint32, float16 or int32");
}

void test_damaged_manifest() {
  const std::string whole = with_id(manifest_body());
  for (size_t size = 0; size < whole.size(); ++size) {
    CHECK(!parse_manifest(whole.substr(0, size), "manifest").ok());
  }
  std::mt19937 random(3);
  for (int round = 0; round < 5000; ++round) {
    std::string damaged = whole;
    const size_t at = random() % damaged.size();
    const char before = damaged[at];
    damaged[at] = static_cast<char>(random());
    if (damaged[at] != before) {
      CHECK(!parse_manifest(damaged, "manifest").ok());
    }
  }
}

void test_write_file() {
  const Folder folder;
  const std::string path = folder.file("a");
  put(path, "first");
  const Status failed = write_file(path, [](int descriptor) {
    (void)write_all(descriptor, "sec", 3);
    errno = ENOSPC;
    return false;
  });
  CHECK(!failed.ok() && failed.failure().code == ZO_STATE_ERROR);
  CHECK(!failed.ok() && failed.failure().expected == "room for the file");
  CHECK(*read_file(path, ZO_STATE_ERROR) == "first");
  CHECK(!exists(path + ".tmp"));
}

}  // namespace

int main() {
  test_sha256();
  test_crc32();
  test_canonical_json();
  test_log_round_trip();
  test_log_torn_and_flipped();
  test_log_file();
  test_log_digest();
  test_safetensors();
  test_safetensors_places();
  test_manifest();
  test_half_slots();
  test_integer_slots();
  test_snapshots();
  test_dtypes();
  test_damaged_manifest();
  test_write_file();
  return check::result();
}
