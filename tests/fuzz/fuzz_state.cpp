// A state folder with altered files: described, opened, read and trained, it is refused, or goes on. An input is what kind of
// state, whether checksums are made right, and then files one after another: a number for the name, the length in two bytes,
// the content.
#include <algorithm>
#include <cmath>

#include "folder.h"
#include "session/storage/crc32.h"
#include "session/storage/json_reader.h"
#include "session/storage/safetensors.h"
#include "session/storage/sha256.h"
#include "session/storage/trajectory.h"
#include "session/storage/work_file.h"

namespace {

using namespace zoexport;

const char* const kNames[] = {"state.json",
                              "run.json",
                              "trajectory.log",
                              "initial.safetensors",
                              "snapshot-0.safetensors",
                              "snapshot-3.safetensors",
                              "snapshot-4.safetensors",
                              "snapshot-5.safetensors",
                              "work.bin"};

void put(std::string& bytes, size_t at, const void* value, size_t size) {
  if (at + size <= bytes.size()) {
    std::memcpy(&bytes[at], value, size);
  }
}

// The checksums of a log: each goes on from the one before.
void sign_log(std::string& bytes) {
  if (bytes.size() < kLogHeaderBytes) {
    return;
  }
  uint32_t crc = crc32(bytes.data(), kLogHeaderBytes - 4);
  put(bytes, kLogHeaderBytes - 4, &crc, 4);
  const size_t record = record_bytes(static_cast<uint8_t>(bytes[48]));
  for (size_t at = kLogHeaderBytes; at + record <= bytes.size(); at += record) {
    crc = crc32(&bytes[at], record - 4, crc);
    put(bytes, at + record - 4, &crc, 4);
  }
}

// A text of so many characters behind `key`, in a header or a document.
void sign_text(std::string& bytes, const std::string& key, const std::string& text) {
  size_t at = bytes.find("\"" + key + "\"");
  at = at == std::string::npos ? at : bytes.find('"', at + key.size() + 2);
  if (at != std::string::npos) {
    put(bytes, at + 1, text.data(), text.size());
  }
}

void sign_tensors(std::string& bytes, const std::string& log, uint64_t steps) {
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), std::min<size_t>(bytes.size(), 8));
  if (bytes.size() < 8 || header > bytes.size() - 8) {
    return;
  }
  const size_t start = 8 + static_cast<size_t>(header);
  sign_text(bytes, "crc32", crc_text(crc32(bytes.data() + start, bytes.size() - start)));
  const size_t read =
      std::min<size_t>(log.size(), log_bytes(steps, log.size() > 48 ? static_cast<uint8_t>(log[48]) : 0));
  sign_text(bytes, "log_sha256", sha256_hex(log.data(), read));
}

void sign_run(std::string& bytes) {
  auto document = nlohmann::json::parse(bytes, nullptr, false);
  if (document.is_object()) {
    document.erase("crc32");
    const std::string text = document.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    document["crc32"] = crc_text(crc32(text.data(), text.size()));
    bytes = document.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  }
}

// The header of work.bin names the file itself and the start of the system.
void sign_work(const std::string& path, std::string& bytes) {
  struct stat status{};
  MUST(::stat(path.c_str(), &status) == 0);
  const std::string boot = boot_id();
  const uint64_t device = status.st_dev, number = status.st_ino;
  put(bytes, 8 + 64, std::string(64, '\0').data(), 64);
  put(bytes, 8 + 64, boot.data(), boot.size());
  put(bytes, 8 + 64 + 64 + 8, &device, 8);
  put(bytes, 8 + 64 + 64 + 16, &number, 8);
}

void read_all(zo_session* session, zo_error& error) {
  char* text = nullptr;
  fuzz::check(zo_session_info(session, &text, &error), error);
  const nlohmann::json info = fuzz::taken(text);
  fuzz::check(zo_session_slots(session, &text, &error), error);
  const auto steps = info["steps"].get<uint64_t>();
  for (const nlohmann::json& slot : fuzz::taken(text)) {
    size_t elements = 1;
    for (const nlohmann::json& extent : slot["shape"]) {
      elements *= extent.get<size_t>();
    }
    std::vector<float> values(elements);
    const std::string name = slot["name"];
    const size_t bytes = elements * sizeof(float);
    fuzz::check(zo_session_read_slot(session, name.c_str(), ZO_SLOT_FINISHED, values.data(), bytes, &error), error);
    const uint64_t updates = std::min<uint64_t>(steps, 2);
    fuzz::check(zo_session_replay_slot(session, name.c_str(), updates, values.data(), bytes, &error), error);
  }
  std::vector<float> gradients(info["num_queries"].get<size_t>());
  for (uint64_t i = 0; i < std::min<uint64_t>(steps, 20); ++i) {
    zo_record record{};
    fuzz::check(zo_session_record(session, i, &record, gradients.data(), &error), error);
    MUST(record.step == i);
  }
  MUST(zo_session_settings(session, &text, &error) == ZO_OK);
  const nlohmann::json settings = fuzz::taken(text);
  MUST(settings["learning_rate"].is_number() && settings["batch_size"] > 0);
}

void train(zo_session* session, zo_error& error) {
  zo_dataset* dataset = zo_dataset_new();
  const int64_t tokens[3] = {1, 2, 3}, labels[3] = {-100, 3, 4};
  const zo_candidate candidate{tokens, labels, 3};
  MUST(zo_dataset_add(dataset, &candidate, 1, 0, &error) == ZO_OK);
  const uint64_t index = 0;
  zo_step step{};
  fuzz::check(zo_session_step(session, dataset, &index, 1, &step, &error), error);
  fuzz::check(zo_session_save(session, &error), error);
  zo_dataset_free(dataset);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder("state");
  fuzz::Numbers numbers(data, size);
  const uint8_t kind = numbers.byte();
  folder.clear();
  std::string log;
  while (numbers.size() > 3) {
    const uint8_t name = numbers.byte() % std::size(kNames);
    size_t bytes = numbers.byte();
    bytes = std::min<size_t>(bytes << 8 | numbers.byte(), numbers.size());
    std::string content = fuzz::text(numbers.data(), bytes);
    numbers.skip(bytes);
    if (kind & 2) {
      if (name == 1) {
        sign_run(content);
      } else if (name == 2) {
        sign_log(content);
      } else if (name > 2 && name < 8) {
        sign_tensors(content, log, name == 4 ? 0 : name - 2u);
      }
    }
    folder.write(kNames[name], content);
    if (name == 8 && (kind & 2)) {
      sign_work(folder.file(kNames[name]), content);
      folder.write(kNames[name], content);
    }
    log = name == 2 ? content : log;
  }
  zo_error error;
  char* text = nullptr;
  zo_status status = zo_state_describe(folder.path().c_str(), &text, &error);
  fuzz::check(status, error);
  MUST(fuzz::taken(text).is_object() == (status == ZO_OK));
  zo_session* session = fuzz::open_bundle(kind & 1 ? "first" : "zeroth");
  const bool trains = (kind & 4) != 0;
  const nlohmann::json options = {
      {"read_only", !trains}, {"recover", (kind & 8) != 0}, {"change_settings", (kind & 16) != 0}};
  status = zo_session_attach(session, folder.path().c_str(), options.dump().c_str(), &error);
  fuzz::check(status, error);
  if (status == ZO_OK) {
    read_all(session, error);
    if (trains) {
      train(session, error);
    }
  }
  zo_session_close(session);
  return 0;
}
