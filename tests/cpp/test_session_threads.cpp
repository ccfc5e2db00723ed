// Sessions and threads, for a thread sanitizer to watch: a run that other threads cancel, sessions side by side, and calls
// from within a callback.
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "job/calls.h"
#include "manifests.h"
#include "session/storage/safetensors.h"

namespace {

using zoexport::hash_file;
using zoexport::join;

// A bundle whose programs this test runs, and a state folder in it.
struct Bundle {
  char path[40] = "/tmp/zoexport-threads-XXXXXX";

  Bundle() {
    CHECK(::mkdtemp(path) != nullptr);
    const float values[6] = {0.1f, -0.2f, 0.3f, 0.0f, 0.5f, -0.6f};
    CHECK(zoexport::write_safetensors(join(path, "adapter.safetensors"), {{"b", ZO_FLOAT32, {2, 3}, values, 24}}, {})
              .ok());
    write("model.pte", "abc");
    std::string body = manifests::manifest_body();
    body = manifests::replaced(body, R"("model.pte":{"bytes":3,"sha256":"00"})",
                               entry("model.pte") + "," + entry("adapter.safetensors"));
    write("manifest.json", manifests::with_id(body));
  }
  ~Bundle() {
    const std::string command = "rm -rf '" + std::string(path) + "'";
    CHECK(std::system(command.c_str()) == 0);
  }
  Bundle(const Bundle&) = delete;
  Bundle& operator=(const Bundle&) = delete;

  std::string state(const std::string& name) const { return join(path, name); }

 private:
  void write(const std::string& name, const std::string& content) const {
    std::ofstream file(join(path, name), std::ios::binary);
    CHECK(file.write(content.data(), static_cast<std::streamsize>(content.size())).good());
  }
  std::string entry(const std::string& name) const {
    const auto hash = hash_file(join(path, name), ZO_BUNDLE_ERROR);
    const auto bytes = zoexport::file_size(join(path, name), ZO_BUNDLE_ERROR);
    CHECK(hash.ok() && bytes.ok());
    return "\"" + name + R"(":{"bytes":)" + std::to_string(*bytes) + R"(,"sha256":")" + *hash + "\"}";
  }
};

// Log-probabilities that follow the slot's values and the noise's sign, and a next state that is the slot's.
int32_t run_program(void* user, const char*, const zo_tensor* inputs, size_t input_count, const zo_tensor* outputs,
                    size_t output_count, char*, size_t) {
  float sum = 0, side = 0;
  const zo_tensor* state = nullptr;
  for (size_t i = 0; i < input_count; ++i) {
    if (std::strcmp(inputs[i].name, "b") == 0) {
      state = &inputs[i];
      for (int k = 0; k < 6; ++k) {
        sum += static_cast<const float*>(inputs[i].data)[k];
      }
    } else if (std::strcmp(inputs[i].name, "sign") == 0) {
      side = *static_cast<const float*>(inputs[i].data);
    }
  }
  for (size_t i = 0; i < output_count; ++i) {
    if (outputs[i].data == nullptr) {
      continue;
    }
    auto* values = static_cast<float*>(outputs[i].data);
    if (std::strcmp(outputs[i].name, "b") == 0) {
      std::memcpy(values, state->data, outputs[i].bytes);
    } else {
      std::fill_n(values, outputs[i].bytes / sizeof(float), -1.5f - 0.001f * sum - 0.0001f * side);
    }
  }
  if (user != nullptr) {
    ++*static_cast<std::atomic<uint64_t>*>(user);
  }
  return 0;
}

zo_session* open(const Bundle& bundle, std::atomic<uint64_t>* calls = nullptr) {
  const zo_engine engine{calls, run_program};
  zo_session* session = nullptr;
  zo_error error;
  if (!CHECK(zo_session_open(bundle.path, R"({"cache": ""})", &engine, &session, &error) == ZO_OK)) {
    std::fprintf(stderr, "%s: found %s; expected %s\n", error.where, error.found, error.expected);
    std::exit(1);
  }
  return session;
}

zo_dataset* examples() {
  zo_dataset* dataset = zo_dataset_new();
  for (int64_t i = 0; i < 5; ++i) {
    const int64_t tokens[3] = {i, i + 1, i + 2};
    const int64_t labels[3] = {-100, i + 2, i};
    const zo_candidate candidate{tokens, labels, 3};
    CHECK(zo_dataset_add(dataset, &candidate, 1, 0, nullptr) == ZO_OK);
  }
  return dataset;
}

uint64_t steps(zo_session* session) {
  const auto info = zoexport::json_of(zo_session_info, session);
  return CHECK(info.ok()) ? (*info)["steps"].get<uint64_t>() : 0;
}

std::vector<float> values(zo_session* session) {
  std::vector<float> found(6);
  CHECK(zo_session_read_slot(session, "b", ZO_SLOT_FINISHED, found.data(), found.size() * sizeof(float), nullptr) ==
        ZO_OK);
  return found;
}

// Trains to so many steps in all.
zo_status train_to(zo_session* session, const zo_dataset* dataset, uint64_t steps,
                   const zo_train_callbacks* callbacks = nullptr) {
  const std::string options = R"({"steps": )" + std::to_string(steps) + "}";
  return zo_session_train(session, dataset, nullptr, options.c_str(), callbacks, nullptr);
}

// Several threads ask a run to stop, again and again; every time it stops between two steps, and goes on after.
void test_cancel_from_threads() {
  const Bundle bundle;
  zo_dataset* dataset = examples();
  for (int round = 0; round < 4; ++round) {
    std::atomic<uint64_t> calls{0};
    zo_session* session = open(bundle, &calls);
    CHECK(zo_session_attach(session, bundle.state("state").c_str(), nullptr, nullptr) == ZO_OK);
    const uint64_t before = steps(session);
    std::atomic<bool> done{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        while (!done) {
          std::this_thread::sleep_for(std::chrono::microseconds(500 + 300 * i));
          zo_session_cancel(session);
        }
      });
    }
    for (int i = 0; i < 10; ++i) {
      const uint64_t from = steps(session);
      CHECK(train_to(session, dataset, 1000000) == ZO_CANCELLED);
      CHECK(steps(session) > from);
    }
    done = true;
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK(steps(session) >= before + 10 && calls > 0);
    zo_session_close(session);
  }
  zo_dataset_free(dataset);
}

// Sessions on threads of their own, of one bundle and one data set, take the steps of one that is alone.
void test_sessions_side_by_side() {
  const Bundle bundle;
  zo_dataset* dataset = examples();
  constexpr uint64_t kSteps = 60;
  const auto train = [&](const std::string& state) {
    zo_session* session = open(bundle);
    CHECK(zo_session_attach(session, bundle.state(state).c_str(), nullptr, nullptr) == ZO_OK);
    CHECK(train_to(session, dataset, kSteps) == ZO_OK);
    const zo_on_part nobody = nullptr;
    const auto evaluation =
        zoexport::json_of(zo_session_evaluate, session, dataset, nobody, static_cast<void*>(nullptr));
    CHECK(evaluation.ok());
    std::vector<float> found = values(session);
    found.push_back((*evaluation)["loss"].get<float>());
    zo_session_close(session);
    return found;
  };
  const std::vector<float> alone = train("alone");
  std::vector<std::vector<float>> found(3);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < found.size(); ++i) {
    threads.emplace_back([&, i] { found[i] = train("state-" + std::to_string(i)); });
  }
  // Readers of a state that is trained meanwhile.
  for (int i = 0; i < 20; ++i) {
    zo_session* session = open(bundle);
    CHECK(zo_session_attach(session, bundle.state("alone").c_str(), R"({"read_only": true})", nullptr) == ZO_OK);
    std::vector<float> read = values(session);
    CHECK(std::equal(read.begin(), read.end(), alone.begin()));
    zo_session_close(session);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::vector<float>& values : found) {
    CHECK(values == alone);
  }
  zo_dataset_free(dataset);
}

// A call from within a callback is refused, and a session that is closed there is freed once the call returns.
void test_close_from_a_callback() {
  const Bundle bundle;
  zo_dataset* dataset = examples();
  for (int round = 0; round < 10; ++round) {
    zo_session* session = open(bundle);
    const auto on_progress = [](void* user, const zo_progress* progress) -> int32_t {
      auto* of = static_cast<zo_session*>(user);
      CHECK(zo_session_save(of, nullptr) == ZO_INVALID_ARGUMENT);
      zo_session_cancel(of);
      if (progress->step == 3) {
        zo_session_close(of);
      }
      return 0;
    };
    const zo_train_callbacks callbacks = {session, on_progress, nullptr, nullptr};
    // It was asked to stop after its first step, then goes on.
    CHECK(train_to(session, dataset, 100, &callbacks) == ZO_CANCELLED);
    CHECK(steps(session) == 1);
    CHECK(train_to(session, dataset, 100, &callbacks) == ZO_CANCELLED);
    CHECK(steps(session) == 2);
    CHECK(train_to(session, dataset, 100, &callbacks) == ZO_CANCELLED);
  }
  zo_dataset_free(dataset);
}

}  // namespace

int main() {
  test_cancel_from_threads();
  test_sessions_side_by_side();
  test_close_from_a_callback();
  return check::result();
}
