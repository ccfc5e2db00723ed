// Prints every state tensor as "NAME HEXADECIMAL": its values recomputed from the initial values and the trajectory log alone,
// all updates applied. A tool of tests/aarch64.
// Usage: replay_slots BUNDLE STATE
#include <cstdio>
#include <string>
#include <vector>

#include "job/calls.h"

namespace {

using namespace zoexport;
using nlohmann::json;

Status print_slots(const std::string& bundle, const std::string& state) {
  ZO_ASSIGN(session, open_session(bundle, json::object()));
  ZO_TRY(call(zo_session_attach, session.get(), state.c_str(), R"({"read_only": true})"));
  ZO_ASSIGN(info, json_of(zo_session_info, session.get()));
  ZO_ASSIGN(slots, json_of(zo_session_slots, session.get()));
  for (const json& slot : slots) {
    const std::string name = slot["name"], dtype = slot["dtype"];
    size_t size = dtype == "uint8" || dtype == "int8" ? 1 : 4;
    for (const json& extent : slot["shape"]) {
      size *= extent.get<size_t>();
    }
    std::vector<unsigned char> bytes(size);
    ZO_TRY(call(zo_session_replay_slot, session.get(), name.c_str(), info["steps"].get<uint64_t>(),
                static_cast<void*>(bytes.data()), size));
    std::printf("%s ", name.c_str());
    for (const unsigned char byte : bytes) {
      std::printf("%02x", byte);
    }
    std::printf("\n");
  }
  return {};
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: replay_slots BUNDLE STATE\n");
    return 2;
  }
  const Status status = print_slots(arguments[1], arguments[2]);
  if (!status.ok()) {
    const Failure& error = status.failure();
    std::fprintf(stderr, "error: %s: found %s; expected %s. %s\n", error.where.c_str(), error.found.c_str(),
                 error.expected.c_str(), error.fix.c_str());
  }
  return status.ok() ? 0 : 1;
}
