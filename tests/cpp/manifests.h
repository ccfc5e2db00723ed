// A manifest of a whole model with one slot, for tests to alter.
#pragma once

#include <string>

#include "session/manifest/canonical.h"
#include "session/storage/sha256.h"

namespace manifests {

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

inline const char* const kNextB = R"(,{"name":"b","role":"state","dtype":"float32","shape":[2,3]}]}],"rng")";
inline const char* const kStep =
    R"("step":{"copies":"one","levels":[{"begin":0,"difference":"central","directions":1}]},)";
inline const char* const kGradients = R"(,{"name":"g","role":"projected_gradients","dtype":"float32","shape":[1]})";

// A manifest with one program pair, without its id.
inline std::string manifest_body() {
  const std::string rows =
      R"({"name":"tokens","role":"tokens","dtype":"int64","shape":[2,8]},)"
      R"({"name":"positions","role":"label_positions","dtype":"int64","shape":[{"name":"m","min":1,"max":16}]},)"
      R"({"name":"labels","role":"label_tokens","dtype":"int64","shape":[{"name":"m","min":1,"max":16}]},)"
      R"({"name":"b","role":"state","dtype":"float32","shape":[2,3]})";
  std::string step = kGradients;
  for (const char* role : {"seed", "step", "query"}) {
    step += replaced(R"(,{"name":"?","role":"?","dtype":"int64","shape":[1]})", "?", role);
  }
  for (const char* role : {"sign", "learning_rate", "epsilon"}) {
    step += replaced(R"(,{"name":"?","role":"?","dtype":"float32","shape":[1]})", "?", role);
  }
  const std::string logprobs =
      R"({"name":"l","role":"label_logprobs","dtype":"float32","shape":[1,{"name":"m","min":1,"max":16}]})";
  return R"("copies":1,"engine":"executorch","files":{"model.pte":{"bytes":3,"sha256":"00"}},"max_labels":16,)"
         R"("method":"prge","programs":[{"name":"evaluate","file":"model.pte","entry_point":"evaluate","inputs":[)" +
         rows + R"(],"outputs":[)" + logprobs + "," + replaced(logprobs, "label_logprobs", "label_is_argmax") +
         R"(]},{"name":"train","file":"model.pte","entry_point":"train","inputs":[)" + rows + step +
         R"(],"outputs":[)" + logprobs + kNextB +
         R"(:"zoexport-philox4x32-10/1","rows":2,"schema_version":1,)"
         R"("settings":{"learning_rate":0.005,"eps":0.01,"seed":18446744073709551615,"batch_size":4},)"
         R"("state":[{"name":"b","role":"trainable","dtype":"float32","shape":[2,3],"tensor_id":9,"module":"m"}],)" +
         std::string(kStep) + R"("target":"android-cpu")";
}

inline std::string with_id(const std::string& body) {
  const auto canonical = zoexport::canonical_json("{" + body + "}", "bundle_id");
  return canonical.ok()
             ? "{\"bundle_id\":\"" + zoexport::sha256_hex(canonical->data(), canonical->size()) + "\"," + body + "}"
             : "{" + body;
}

}  // namespace manifests
