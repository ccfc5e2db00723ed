// The condition of the device against the limits of a job.
#pragma once

#include <cstdint>
#include <string>

#include "session/options.h"
#include "session/result.h"
#include "zoexport/job.h"

namespace zoexport {

// Why a job does not continue.
enum class Wait { kNone, kAsked, kHeat, kBattery, kDisk, kMemory, kBackground };

// Names as in zo_job_view and zo_job_pause; a reason for a pause that is none of these is "asked".
const char* wait_text(Wait wait);
Wait pause_from_text(const std::string& text);

// Options "limits".
struct Limits {
  int32_t heat;
  double hottest, cooled;
  double battery;
  uint64_t free_bytes, memory_bytes;
  double poll_seconds;
};

// Refuses limits below which a job could never continue.
Result<Limits> read_limits(const Options& options);

zo_conditions unknown_conditions();

// Return what prevents a step: disk, memory, heat or battery.
Wait obstacle(const zo_conditions& now, const Limits& limits);
// Return whether a job that waits may continue.
bool passed(Wait reason, const zo_conditions& now, const Limits& limits);

// The message about a job that does not continue; `folder` is the job's.
Failure waiting_message(Wait reason, const zo_conditions& now, const Limits& limits, const std::string& folder);

}  // namespace zoexport
