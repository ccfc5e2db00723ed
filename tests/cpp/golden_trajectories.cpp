// Golden trajectories through the C ABI, as any host takes them.
// Usage: golden_trajectories FOLDER, the folder that tests/support/trajectories.py makes.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "check.h"
#include "job/calls.h"

using nlohmann::json;

namespace {

using zoexport::DatasetHandle;
using zoexport::SessionHandle;

template <typename Verb, typename... Arguments>
bool done(Verb verb, Arguments... arguments) {
  const zoexport::Status status = zoexport::call(verb, arguments...);
  if (!status.ok()) {
    const zoexport::Failure& error = status.failure();
    std::fprintf(stderr, "error: %s: found %s; expected %s. %s\n", error.where.c_str(), error.found.c_str(),
                 error.expected.c_str(), error.fix.c_str());
  }
  return CHECK(status.ok());
}

SessionHandle open(const std::string& bundle) {
  auto opened = zoexport::open_session(bundle, json::object());
  CHECK(opened.ok());
  return std::move(*opened);
}

uint32_t bits(float value) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof(word));
  return word;
}

uint32_t hex32(const std::string& text) { return static_cast<uint32_t>(std::strtoul(text.c_str(), nullptr, 16)); }

std::vector<uint32_t> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<uint32_t> all;
  for (std::string word; stream >> word;) {
    all.push_back(hex32(word));
  }
  return all;
}

float float_of(uint32_t word) {
  float value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

std::vector<float> read(zo_session* session, const std::string& name, size_t count) {
  std::vector<float> values(count);
  done(zo_session_read_slot, session, name.c_str(), static_cast<int32_t>(ZO_SLOT_FINISHED), values.data(),
       count * sizeof(float));
  return values;
}

// |found - expected| / |expected| over a whole slot.
double error_of(const std::vector<float>& found, const std::vector<uint32_t>& expected) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double wanted = float_of(expected[i]);
    difference += (found[i] - wanted) * (found[i] - wanted);
    norm += wanted * wanted;
  }
  return std::sqrt(difference / norm);
}

// Losses and values within the bounds; rates, and the scalars that follow from the losses, exactly.
void steps(const std::string& bundle, const json& run, const json& bounds, const zo_dataset* examples) {
  const SessionHandle session = open(bundle);
  const auto settings = zoexport::json_of(zo_session_settings, session.get());
  CHECK((*settings)["seed"] == std::strtoull(run["seed"].get<std::string>().c_str(), nullptr, 16));
  const double eps = static_cast<float>(settings->value("eps", 0.0));  // as the record has it
  done(zo_session_configure, session.get(), json{{"total_steps", run["steps"]}}.dump().c_str());
  for (size_t number = 0; number < run["batches"].size(); ++number) {
    const auto batch = run["batches"][number].get<std::vector<uint64_t>>();
    const auto losses = run["losses"][number].get<std::vector<double>>();
    zo_step step = {};
    done(zo_session_step, session.get(), examples, batch.data(), batch.size(), &step);
    CHECK(step.loss_count == losses.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      CHECK(std::fabs(step.losses[i] - losses[i]) <= bounds["loss"].get<double>() * std::fabs(losses[i]));
    }
    CHECK(bits(static_cast<float>(step.learning_rate)) == hex32(run["rates"][number]));
    CHECK(step.gradient_count == (run["gradients"].empty() ? 0 : run["gradients"][number].size()));
    for (size_t i = 0; i < step.gradient_count; ++i) {
      const double slope = (step.losses[2 * i] - step.losses[2 * i + 1]) / (2 * eps);
      CHECK(bits(step.gradients[i]) == bits(static_cast<float>(slope)));
    }
  }
  for (const auto& [name, text] : run["slots"].items()) {
    const std::vector<uint32_t> expected = words(text);
    CHECK(error_of(read(session.get(), name, expected.size()), expected) <= bounds["state"].get<double>());
  }
}

// The noise specification fixes these slots to the last bit.
void logged(const std::string& folder, const json& run) {
  const SessionHandle session = open(folder + "/bundle");
  const std::string state = folder + "/logged";
  done(zo_session_attach, session.get(), state.c_str(), R"({"read_only": true})");
  for (const auto& [name, text] : run["slots"].items()) {
    const std::vector<uint32_t> expected = words(text);
    const std::vector<float> values = read(session.get(), name, expected.size());
    CHECK(std::memcmp(values.data(), expected.data(), expected.size() * sizeof(float)) == 0);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: golden_trajectories FOLDER\n");
    return 2;
  }
  const std::string folder = arguments[1];
  std::ifstream file(ZOEXPORT_SOURCE_DIR "/graphs/golden/trajectories.json");
  const json golden = json::parse(file);
  const DatasetHandle examples(zo_dataset_new());
  done(zo_dataset_load, examples.get(), (folder + "/examples.jsonl").c_str());
  for (const json& run : golden["trajectories"]) {
    const std::string place = folder + "/" + run["method"].get<std::string>();
    steps(place + "/bundle", run, golden["tolerances"], examples.get());
    if (!run["gradients"].empty()) {
      logged(place, run);
    }
  }
  return check::result();
}
