// What the device says of itself against the limits of a job.
#pragma once

#include <cstdint>
#include <string>

#include "session/result.h"
#include "zoexport/job.h"

namespace zoexport {

// Nothing is known.
zo_conditions unknown_conditions();
zo_limits default_limits();
// Refuses limits under which a job could never go on.
Status check_limits(const zo_limits& limits);

// What is in the way of taking a step: one of ZO_WAIT_DISK, _MEMORY, _HEAT, _BATTERY, or ZO_WAIT_NONE.
int32_t obstacle(const zo_conditions& now, const zo_limits& limits);
// Whether a job that waits for `reason` may go on.
bool passed(int32_t reason, const zo_conditions& now, const zo_limits& limits);

// What the person is told of a job that does not go on for `reason`; `folder` is the job's.
Failure waiting_message(int32_t reason, const zo_conditions& now, const zo_limits& limits, const std::string& folder);

}  // namespace zoexport
