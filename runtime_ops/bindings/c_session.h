// The session behind the C ABI's handle, and the frame of its verbs.
#pragma once

#include <atomic>
#include <memory>

#include "bindings/c_support.h"
#include "session/session.h"

struct zo_session {
  std::unique_ptr<zoexport::Session> impl;
  std::shared_ptr<zoexport::Faults> faults;
  zoexport::StepReport last = {};  // what the pointers of zo_step refer to
  std::atomic<bool> busy{false};
  std::atomic<bool> cancelled{false};
  bool closing = false;  // asked for from within a call
};

namespace zoexport::c {

// Makes the handle of an opened session.
Result<zo_session*> open_session(const std::string& bundle, const Options& options, const zo_engine* engine);
// An evaluation of the run as JSON.
nlohmann::json encode_evaluated(const Evaluated& evaluated, bool best);

// Runs a verb of a session. The host's callbacks run inside verbs, with the session half-way through a change.
template <typename Body>
zo_status with_session(zo_session* session, zo_error* error, Body body) noexcept {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    if (session->busy.exchange(true)) {
      return Failure{ZO_INVALID_ARGUMENT, "session", "a call from within a call", "one call at a time",
                     "Let the callback return first."};
    }
    struct Release {
      zo_session* session;
      ~Release() {
        session->busy = false;
        if (session->closing) {
          delete session;
        }
      }
    } release{session};
    const std::shared_ptr<Faults> faults = session->faults;
    const Faults::Scope scope(faults);
    ZO_TRY(faults->check());
    ZO_TRY(body(*session->impl));
    return faults->check();
  });
}

// Progress of a session's call, until the host or zo_session_cancel ends it.
inline GoOn parts_of(const zo_session* session, zo_on_part on_part, void* user) {
  return [session, parts = Parts(on_part, user)](uint64_t done, uint64_t total) mutable {
    return parts(done, total) && !session->cancelled;
  };
}

// Call `body` on a parameter whose values take `bytes` bytes in the caller's array.
template <typename Body>
zo_status with_slot(zo_session* session, const char* name, const void* values, size_t bytes, zo_error* error,
                    Body body) noexcept {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(name);
    ZO_REQUIRE(values);
    ZO_ASSIGN(slot, impl.slot(name, bytes));
    return body(impl, slot);
  });
}

}  // namespace zoexport::c
