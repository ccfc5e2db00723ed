#include "session/state/evaluations.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "session/decimal.h"
#include "session/state/sealed_json.h"
#include "session/storage/json_reader.h"

namespace zoexport {
namespace {

using nlohmann::json;

constexpr int64_t kSchema = 1;
const char* const kFix = "Restore it from a copy, or remove it: what was found is lost then, and the run goes on.";

double number_of(const JsonNode& node, const char* key) {
  return node.has(key) ? node.member(key).number() : std::numeric_limits<double>::quiet_NaN();
}

std::string described(const Evaluations& one) {
  return std::to_string(one.data.examples) + " held-out examples of digest " + one.data.sha256.substr(0, 12) +
         ", every " + std::to_string(one.settings.every) + " steps, patience " + std::to_string(one.settings.patience) +
         ", keep " + (one.settings.keep_best ? "best" : "last");
}

}  // namespace

json encode_evaluation(const Evaluation& evaluation) {
  return {{"loss", json_number(evaluation.loss)},
          {"accuracy", json_number(evaluation.accuracy)},
          {"token_accuracy", json_number(evaluation.token_accuracy)},
          {"margin", json_number(evaluation.margin)}};
}

const Evaluated* Evaluations::best() const {
  const Evaluated* found = nullptr;
  for (const Evaluated& one : made) {
    if (one.step > 0 && (found == nullptr || one.found.loss < found->found.loss)) {
      found = &one;
    }
  }
  return found;
}

bool Evaluations::has(uint64_t step) const {
  return std::any_of(made.begin(), made.end(), [&](const Evaluated& one) { return one.step == step; });
}

bool Evaluations::ended() const {
  const Evaluated* const found = best();
  return settings.patience > 0 && found != nullptr && &made.back() - found >= settings.patience;
}

void Evaluations::cut(uint64_t steps) {
  while (!made.empty() && made.back().step > steps) {
    made.pop_back();
  }
}

Status check_validation(const std::string& state, const Evaluations& known, const Evaluations& now) {
  const std::string found = described(known), expected = described(now);
  if (found == expected) {
    return {};
  }
  return Failure{ZO_STATE_ERROR, state, "a run that evaluates on " + found, expected,
                 "Leave out what differs to go on with the run, take another state, or let it go on with the new "
                 "values: --change-settings (option change_settings)."};
}

json encode_evaluations(const Evaluations& evaluations) {
  json document = {{"schema_version", kSchema},
                   {"data", {{"sha256", evaluations.data.sha256}, {"examples", evaluations.data.examples}}},
                   {"every", evaluations.settings.every},
                   {"patience", evaluations.settings.patience},
                   {"keep", evaluations.settings.keep_best ? "best" : "last"},
                   {"evaluations", json::array()}};
  for (const Evaluated& one : evaluations.made) {
    json entry = encode_evaluation(one.found);
    entry["step"] = one.step;
    document["evaluations"].push_back(std::move(entry));
  }
  return sealed(std::move(document));
}

Result<Evaluations> read_evaluations(const std::string& path) {
  ZO_ASSIGN(document, read_sealed(path, kSchema, "the evaluations of the run", kFix));
  JsonProblems problems(ZO_STATE_ERROR, path, kFix);
  const JsonNode root(&document, "", &problems);
  Evaluations found;
  const JsonNode data = root.member("data");
  found.data = {data.member("sha256").text(), data.member("examples").unsigned_integer()};
  found.settings.every = static_cast<uint32_t>(root.member("every").integer(1, UINT32_MAX));
  found.settings.patience = static_cast<uint32_t>(root.member("patience").integer(0, UINT32_MAX));
  found.settings.keep_best = root.member("keep").text() == "best";
  for (const JsonNode& one : root.member("evaluations").items()) {
    Evaluated made;
    made.step = static_cast<uint64_t>(one.member("step").integer(0, UINT32_MAX));
    made.found.loss = number_of(one, "loss");
    made.found.accuracy = number_of(one, "accuracy");
    made.found.token_accuracy = number_of(one, "token_accuracy");
    made.found.margin = number_of(one, "margin");
    made.found.examples = found.data.examples;
    if (!found.made.empty() && made.step <= found.made.back().step) {
      one.member("step").problem("more steps than those of the evaluation before");
    }
    found.made.push_back(made);
  }
  ZO_TRY(problems.status());
  return found;
}

}  // namespace zoexport
