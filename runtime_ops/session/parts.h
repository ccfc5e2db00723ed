// Progress callback of long calls.
#pragma once

#include <cstdint>
#include <functional>

namespace zoexport {

// Progress callback(done, total); returns false to cancel. May be empty.
using GoOn = std::function<bool(uint64_t done, uint64_t total)>;

}  // namespace zoexport
