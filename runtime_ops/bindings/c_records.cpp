// The C ABI's verbs on the records of a trajectory log.
#include <algorithm>
#include <string>
#include <vector>

#include "bindings/c_session.h"

using namespace zoexport::c;
using zoexport::Failure;
using zoexport::Status;

zo_status zo_session_record(zo_session* session, uint64_t index, zo_record* record, float* gradients, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(record);
    const auto& records = impl.records();
    if (index >= records.size()) {
      return Failure{ZO_INVALID_ARGUMENT, "index", std::to_string(index), "below " + std::to_string(records.size()),
                     "Pass an index below the session's steps."};
    }
    const zoexport::Record& found = records[index];
    *record = {found.step, found.learning_rate, found.eps, found.loss};
    if (gradients != nullptr) {
      std::copy(found.gradients.begin(), found.gradients.end(), gradients);
    }
    return {};
  });
}

zo_status zo_session_follow(zo_session* session, const zo_record* records, const float* gradients, size_t count,
                            zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    if (count == 0) {
      return {};
    }
    ZO_REQUIRE(records);
    ZO_REQUIRE(gradients);
    const uint32_t queries = impl.queries();
    std::vector<zoexport::Record> given;
    for (size_t i = 0; i < count; ++i) {
      const zo_record& record = records[i];
      if (record.step > UINT32_MAX) {
        return Failure{ZO_INVALID_ARGUMENT, "record " + std::to_string(i), "step " + std::to_string(record.step),
                       "steps below 2^32", "Pass the records of one run."};
      }
      given.push_back({static_cast<uint32_t>(record.step), record.learning_rate, record.eps, record.loss,
                       std::vector<float>(gradients + i * queries, gradients + (i + 1) * queries)});
    }
    return impl.follow(std::move(given));
  });
}
