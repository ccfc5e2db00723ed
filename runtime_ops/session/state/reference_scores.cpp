#include "session/state/reference_scores.h"

#include "session/state/sealed_json.h"
#include "session/storage/json_reader.h"

namespace zoexport {
namespace {

using nlohmann::json;

constexpr int64_t kSchema = 1;
const char* const kFix = "Restore it from a copy, or remove it: the scores are computed again.";

}  // namespace

json encode_reference(const std::string& bundle_id, const std::vector<ReferenceScores>& sets) {
  json document = {{"schema_version", kSchema}, {"bundle_id", bundle_id}, {"sets", json::array()}};
  for (const ReferenceScores& one : sets) {
    document["sets"].push_back({{"data", {{"sha256", one.data.sha256}, {"examples", one.data.examples}}},
                                // Shortest digits that read as the same double.
                                {"scores", one.scores}});
  }
  return sealed(std::move(document));
}

Result<std::vector<ReferenceScores>> read_reference(const std::string& path, const std::string& bundle_id) {
  ZO_ASSIGN(document, read_sealed(path, kSchema, "the scores of the reference model", kFix));
  JsonProblems problems(ZO_STATE_ERROR, path, kFix);
  const JsonNode root(&document, "", &problems);
  if (root.member("bundle_id").text() != bundle_id) {
    root.member("bundle_id").problem(bundle_id + ", which the state belongs to");
  }
  std::vector<ReferenceScores> sets;
  for (const JsonNode& one : root.member("sets").items()) {
    const JsonNode data = one.member("data");
    ReferenceScores found;
    found.data = {data.member("sha256").text(), data.member("examples").unsigned_integer()};
    for (const JsonNode& score : one.member("scores").items()) {
      found.scores.push_back(score.number());
    }
    if (found.scores.size() != 2 * found.data.examples) {
      one.member("scores").problem("two of each example");
    }
    sets.push_back(std::move(found));
  }
  ZO_TRY(problems.status());
  return sets;
}

}  // namespace zoexport
