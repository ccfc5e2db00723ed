#include "session/state/sealed_json.h"

#include "session/storage/crc32.h"
#include "session/storage/files.h"
#include "session/storage/json_reader.h"
#include "session/storage/safetensors.h"

namespace zoexport {
namespace {

using nlohmann::json;

const char* const kCrc = "crc32";

std::string crc_of(const json& document) {
  const std::string text = document.dump(-1, ' ', true, json::error_handler_t::replace);
  return crc_text(crc32(text.data(), text.size()));
}

}  // namespace

json sealed(json document) {
  document[kCrc] = crc_of(document);
  return document;
}

Result<json> read_sealed(const std::string& path, int64_t schema, const std::string& expected, const std::string& fix) {
  ZO_ASSIGN(text, read_file(path, ZO_STATE_ERROR));
  ZO_ASSIGN(document, parse_json(text.data(), text.data() + text.size(), ZO_STATE_ERROR, path, fix));
  JsonProblems problems(ZO_STATE_ERROR, path, fix);
  const JsonNode root(&document, "", &problems);
  const int64_t found = root.member("schema_version").integer(1, INT32_MAX);
  const std::string crc = root.member(kCrc).text();
  ZO_TRY(problems.status());
  if (found > schema) {
    return Failure{ZO_STATE_ERROR, path, "schema_version " + std::to_string(found), "at most " + std::to_string(schema),
                   "Update zoexport, or start again in another folder."};
  }
  json rest = document;
  rest.erase(kCrc);
  if (crc_of(rest) != crc) {
    return Failure{ZO_STATE_ERROR, path, "damaged content", expected, fix};
  }
  return document;
}

}  // namespace zoexport
