#include "session/storage/dtypes.h"

#include "zoexport/session.h"

namespace zoexport {
namespace {

struct Dtype {
  const char* text;
  const char* safetensors;
  size_t bytes;
};

// By number.
constexpr Dtype kDtypes[] = {{"float32", "F32", 4},   {"int64", "I64", 8}, {"uint8", "U8", 1},
                             {"bfloat16", "BF16", 2}, {"int8", "I8", 1},   {"uint32", "U32", 4},
                             {"float16", "F16", 2},   {"int32", "I32", 4}};
constexpr int32_t kCount = sizeof(kDtypes) / sizeof(kDtypes[0]);
static_assert(ZO_FLOAT32 == 0 && ZO_INT32 == kCount - 1, "one entry for each ZO_* dtype");

}  // namespace

size_t dtype_bytes(int32_t dtype) { return kDtypes[dtype].bytes; }

const char* dtype_text(int32_t dtype) { return kDtypes[dtype].text; }

int32_t dtype_from_text(const std::string& text) {
  int32_t dtype = 0;
  while (dtype < kCount && text != kDtypes[dtype].text) {
    ++dtype;
  }
  return dtype < kCount ? dtype : -1;
}

std::string dtype_texts() {
  std::string texts;
  for (int32_t i = 0; i < kCount; ++i) {
    texts += (i == 0 ? "" : i + 1 < kCount ? ", " : " or ") + std::string(kDtypes[i].text);
  }
  return texts;
}

const char* safetensors_dtype(int32_t dtype) { return kDtypes[dtype].safetensors; }

}  // namespace zoexport
