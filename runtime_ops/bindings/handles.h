// The C ABI's handles, freed where they go out of scope, for C++ that is a host of it.
#pragma once

#include <memory>

#include "zoexport/session.h"

namespace zoexport {

struct CloseSession {
  void operator()(zo_session* session) const { zo_session_close(session); }
};
struct CloseTokenizer {
  void operator()(zo_tokenizer* tokenizer) const { zo_tokenizer_close(tokenizer); }
};
struct FreeDataset {
  void operator()(zo_dataset* dataset) const { zo_dataset_free(dataset); }
};
using SessionHandle = std::unique_ptr<zo_session, CloseSession>;
using TokenizerHandle = std::unique_ptr<zo_tokenizer, CloseTokenizer>;
using DatasetHandle = std::unique_ptr<zo_dataset, FreeDataset>;

// A struct for the library to fill.
template <typename T>
T sized() {
  T empty = {};
  empty.struct_size = sizeof(T);
  return empty;
}

}  // namespace zoexport
