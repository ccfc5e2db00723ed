// Memory that a bundle requires, added up from the manifest's untrusted sizes before anything is allocated.
#pragma once

#include "session/manifest/manifest.h"

namespace zoexport {

// Bytes of a value at its largest sizes; at least kMostTensor if it exceeds the limit of a tensor.
uint64_t value_bytes(const ValueSpec& value);

// The most that one tensor may take, so that sums of many stay within 64 bits.
inline constexpr uint64_t kMostTensor = uint64_t{1} << 40;

// Refuses a bundle whose programs must be given more than this machine has memory: the rows of one call, what it fills its
// label entries up to, noise, and the rows of the head. Weights and what passes between stages are in files. `where`
// names the manifest.
Status check_needs(const Manifest& manifest, const std::string& where);

// Refuse a run whose updates take more examples than fit this machine's memory.
Status check_batch(const RunSettings& run, uint32_t max_length);

}  // namespace zoexport
