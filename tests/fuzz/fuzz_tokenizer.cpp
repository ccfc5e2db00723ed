// A tokenizer.json: whatever it says, it is read or refused; then every text has tokens, or there is a message, and streams
// give what decoding at once does.
#include <vector>

#include "fuzz.h"
#include "session/text/tokenizer.h"
#include "session/text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace zoexport;
  const std::string json = fuzz::text(data, size);
  const auto tokenizer = Tokenizer::parse(json, "tokenizer.json");
  if (!tokenizer.ok()) {
    MUST(!tokenizer.failure().where.empty() && !tokenizer.failure().found.empty() && !tokenizer.failure().fix.empty());
    return 0;
  }
  const std::string text = "The \xC3\xA9t\xC3\xA9's  12\n\n\xF0\x9F\x99\x82 <s>e\xCC\x81";
  const auto ids = tokenizer->encode(text, zoexport::Special::kAll);
  if (!ids.ok()) {
    MUST(ids.failure().code == ZO_DATA_ERROR);
    return 0;
  }
  TextStream stream = tokenizer->stream(false);
  std::string pieces;
  for (const int64_t id : *ids) {
    pieces += *stream.push(id);
  }
  pieces += stream.finish();
  MUST(pieces == *tokenizer->decode(*ids, false) && valid_utf8(pieces) == pieces.size());
  return 0;
}
