#include "job/conditions.h"

#include <cmath>
#include <cstdio>
#include <limits>

namespace zoexport {
namespace {

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

bool on_battery(const zo_conditions& now) { return now.charging == 0; }

std::string megabytes(uint64_t bytes) { return std::to_string(bytes / 1000000) + " MB"; }

std::string number(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

}  // namespace

zo_conditions unknown_conditions() {
  return {sizeof(zo_conditions), ZO_HEAT_UNKNOWN, kNaN, kNaN, -1, 0, kUnknown, kUnknown};
}

zo_limits default_limits() { return {sizeof(zo_limits), ZO_HEAT_SERIOUS, 42.0, 39.0, 0.2, 200000000, 100000000, 30.0}; }

Status check_limits(const zo_limits& limits) {
  const auto refused = [](const char* field, double value, const char* expected) {
    return Failure{ZO_INVALID_ARGUMENT, std::string("zo_limits.") + field, number("%g", value), expected,
                   "Correct the limit, or take zo_limits_default."};
  };
  if (limits.heat <= ZO_HEAT_NOMINAL) {
    return refused("heat", limits.heat, "above ZO_HEAT_NOMINAL");
  }
  if (!(limits.cooled <= limits.hottest)) {
    return refused("cooled", limits.cooled, "at most `hottest`");
  }
  if (!(limits.battery >= 0 && limits.battery <= 1)) {
    return refused("battery", limits.battery, "from 0 to 1");
  }
  if (!(limits.poll_seconds > 0) || !std::isfinite(limits.poll_seconds)) {
    return refused("poll_seconds", limits.poll_seconds, "above 0");
  }
  return {};
}

// Comparisons with NaN are false: what is not known is not in the way.
int32_t obstacle(const zo_conditions& now, const zo_limits& limits) {
  if (now.free_bytes < limits.free_bytes) {
    return ZO_WAIT_DISK;
  }
  if (now.memory_bytes < limits.memory_bytes) {
    return ZO_WAIT_MEMORY;
  }
  if (now.heat >= limits.heat || now.celsius > limits.hottest) {
    return ZO_WAIT_HEAT;
  }
  return on_battery(now) && now.battery < limits.battery ? ZO_WAIT_BATTERY : ZO_WAIT_NONE;
}

bool passed(int32_t reason, const zo_conditions& now, const zo_limits& limits) {
  switch (reason) {
    case ZO_WAIT_DISK:
      return now.free_bytes >= limits.free_bytes;
    case ZO_WAIT_MEMORY:
      return now.memory_bytes >= limits.memory_bytes;
    case ZO_WAIT_HEAT:
      return now.heat < limits.heat && !(now.celsius > limits.cooled);
    case ZO_WAIT_BATTERY:
      return !on_battery(now) || !(now.battery < limits.battery);
    default:
      return true;
  }
}

Failure waiting_message(int32_t reason, const zo_conditions& now, const zo_limits& limits, const std::string& folder) {
  const auto message = [](const std::string& where, const std::string& found, const std::string& expected,
                          const std::string& fix) { return Failure{ZO_CANCELLED, where, found, expected, fix}; };
  switch (reason) {
    case ZO_WAIT_DISK:
      return message(folder, megabytes(now.free_bytes) + " free", "at least " + megabytes(limits.free_bytes),
                     "Free some space; the run goes on from where it is.");
    case ZO_WAIT_MEMORY:
      return message("memory", now.memory_bytes == kUnknown ? "a system that asks for it" : megabytes(now.memory_bytes),
                     "at least " + megabytes(limits.memory_bytes) + " for the app",
                     "Close other apps, then go on; the run is saved.");
    case ZO_WAIT_HEAT:
      return message("the device",
                     std::isnan(now.celsius) ? "heat that slows it down" : number("%.1f degrees Celsius", now.celsius),
                     "at most " + number("%.1f", limits.cooled) + " degrees",
                     "Let it cool; the run goes on by itself.");
    case ZO_WAIT_BATTERY:
      return message("the battery", number("%.0f percent", 100 * now.battery),
                     "at least " + number("%.0f percent", 100 * limits.battery) + ", or a charger",
                     "Charge the device; the run goes on by itself.");
    case ZO_WAIT_BACKGROUND:
      return message("the app", "the background", "the foreground, where this bundle's engine may run",
                     "Open the app to go on; the run is saved.");
    default:
      return {ZO_OK, "", "", "", ""};
  }
}

}  // namespace zoexport
