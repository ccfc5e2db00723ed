// Prints every slot of a state as "NAME HEXADECIMAL": its bytes recomputed from the initial values and the trajectory log
// alone, all updates applied. A tool of tests/aarch64.
// Usage: replay_slots BUNDLE STATE
#include <cstdio>
#include <string>
#include <vector>

#include "zoexport/session.h"

namespace {

bool print_slot(zo_session* session, uint32_t index, uint64_t updates, zo_error* error) {
  zo_slot_info slot{};
  slot.struct_size = sizeof(slot);
  if (zo_session_slot(session, index, &slot, error) != ZO_OK) {
    return false;
  }
  const std::string name = slot.name;
  const bool one_byte = slot.dtype == ZO_UINT8 || slot.dtype == ZO_INT8;
  std::vector<unsigned char> bytes(slot.elements * (one_byte ? 1 : slot.dtype == ZO_FLOAT16 ? 2 : 4));
  if (zo_session_replay_slot_bytes(session, name.c_str(), updates, bytes.data(), bytes.size(), error) != ZO_OK) {
    return false;
  }
  std::printf("%s ", name.c_str());
  for (const unsigned char byte : bytes) {
    std::printf("%02x", byte);
  }
  std::printf("\n");
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: replay_slots BUNDLE STATE\n");
    return 2;
  }
  zo_error error{};
  zo_session* session = nullptr;
  zo_info info{};
  info.struct_size = sizeof(info);
  bool done = zo_session_open(arguments[1], nullptr, &session, &error) == ZO_OK &&
              zo_session_attach(session, arguments[2], ZO_STATE_READ, nullptr, &error) == ZO_OK &&
              zo_session_info(session, &info, &error) == ZO_OK;
  const uint32_t slots = info.slots;
  const uint64_t updates = info.steps;
  for (uint32_t i = 0; done && i < slots; ++i) {
    done = print_slot(session, i, updates, &error);
  }
  zo_session_close(session);
  if (!done) {
    std::fprintf(stderr, "error: %s: found %s; expected %s. %s\n", error.where, error.found, error.expected, error.fix);
  }
  return done ? 0 : 1;
}
