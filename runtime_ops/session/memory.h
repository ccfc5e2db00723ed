// What the kernel says of this process's memory.
#pragma once

#include "zoexport/session.h"

namespace zoexport {

// Zeros where the system does not say.
zo_memory memory_usage();

}  // namespace zoexport
