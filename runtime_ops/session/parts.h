// What long calls ask between their parts.
#pragma once

#include <cstdint>
#include <functional>

namespace zoexport {

// Is told how much is done, of how much, and answers whether to go on; may be empty.
using GoOn = std::function<bool(uint64_t done, uint64_t total)>;

}  // namespace zoexport
