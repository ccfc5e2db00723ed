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

const char* wait_text(Wait wait) {
  constexpr const char* kTexts[] = {"none", "asked", "heat", "battery", "disk", "memory", "background"};
  return kTexts[static_cast<int>(wait)];
}

Wait pause_from_text(const std::string& text) {
  return text == "memory" ? Wait::kMemory : text == "background" ? Wait::kBackground : Wait::kAsked;
}

zo_conditions unknown_conditions() { return {ZO_HEAT_UNKNOWN, -1, kNaN, kNaN, kUnknown, kUnknown}; }

Result<Limits> read_limits(const Options& options) {
  const Limits limits{static_cast<int32_t>(options.count("heat")),
                      options.number("hottest"),
                      options.number("cooled"),
                      options.number("battery"),
                      options.whole("free_bytes"),
                      options.whole("memory_bytes"),
                      options.number("poll_seconds")};
  if (limits.cooled > limits.hottest) {
    return Failure{ZO_INVALID_ARGUMENT, "option 'cooled'", number("%g", limits.cooled),
                   "at most hottest, " + number("%g", limits.hottest), "Correct the limit."};
  }
  return limits;
}

// Comparisons with NaN are false: what is not known is not in the way.
Wait obstacle(const zo_conditions& now, const Limits& limits) {
  if (now.free_bytes < limits.free_bytes) {
    return Wait::kDisk;
  }
  if (now.memory_bytes < limits.memory_bytes) {
    return Wait::kMemory;
  }
  if (now.heat >= limits.heat || now.celsius > limits.hottest) {
    return Wait::kHeat;
  }
  return on_battery(now) && now.battery < limits.battery ? Wait::kBattery : Wait::kNone;
}

bool passed(Wait reason, const zo_conditions& now, const Limits& limits) {
  switch (reason) {
    case Wait::kDisk:
      return now.free_bytes >= limits.free_bytes;
    case Wait::kMemory:
      return now.memory_bytes >= limits.memory_bytes;
    case Wait::kHeat:
      return now.heat < limits.heat && !(now.celsius > limits.cooled);
    case Wait::kBattery:
      return !on_battery(now) || !(now.battery < limits.battery);
    default:
      return true;
  }
}

Failure waiting_message(Wait reason, const zo_conditions& now, const Limits& limits, const std::string& folder) {
  const auto message = [](const std::string& where, const std::string& found, const std::string& expected,
                          const std::string& fix) { return Failure{ZO_CANCELLED, where, found, expected, fix}; };
  switch (reason) {
    case Wait::kDisk:
      return message(folder, megabytes(now.free_bytes) + " free", "at least " + megabytes(limits.free_bytes),
                     "Free some space; the run goes on from where it is.");
    case Wait::kMemory:
      return message("memory", now.memory_bytes == kUnknown ? "a system that asks for it" : megabytes(now.memory_bytes),
                     "at least " + megabytes(limits.memory_bytes) + " for the app",
                     "Close other apps, then go on; the run is saved.");
    case Wait::kHeat:
      return message("the device",
                     std::isnan(now.celsius) ? "heat that slows it down" : number("%.1f degrees Celsius", now.celsius),
                     "at most " + number("%.1f", limits.cooled) + " degrees",
                     "Let it cool; the run goes on by itself.");
    case Wait::kBattery:
      return message("the battery", number("%.0f percent", 100 * now.battery),
                     "at least " + number("%.0f percent", 100 * limits.battery) + ", or a charger",
                     "Charge the device; the run goes on by itself.");
    case Wait::kBackground:
      return message("the app", "the background", "the foreground, where this bundle's engine may run",
                     "Open the app to go on; the run is saved.");
    default:
      return {ZO_OK, "", "", "", ""};
  }
}

}  // namespace zoexport
