// Session: what it generates with, and that it can.
#include "session/memory.h"
#include "session/session.h"

namespace zoexport {

Status Session::check_generates() const {
  const std::string where = "bundle " + files_.path();
  const std::string expected = "programs that generate";
  if (!manifest_.generate) {
    return Failure{ZO_BUNDLE_ERROR, where, "none, as it is older than they are", expected,
                   "Compile it again with this version."};
  }
  if (!manifest_.generate->problem.empty()) {
    return Failure{ZO_BUNDLE_ERROR, where, "none: " + manifest_.generate->problem, expected,
                   "Compile it otherwise (docs/generate.md)."};
  }
  return {};
}

Result<zo_generation> Session::generate(const GenerateOptions& options, bool untrained, const OnToken& on_token) {
  ZO_TRY(check_generates());
  ZO_TRY(check_options(manifest_, options));
  StateValues state = [this](size_t slot) { return slots_->bundled(slot); };
  if (!untrained) {
    ZO_ASSIGN(trained, finished());
    state = std::move(trained);
  }
  AnonymousPeak anonymous;
  if (generating_ == nullptr) {
    generating_ = std::make_unique<Programs>(manifest_.generate->programs, *engine_);
  }
  Decoder decoder(manifest_, *slots_, *generating_, *weights_);
  ZO_ASSIGN(made, zoexport::generate(manifest_, decoder, options, run_.seed, state, on_token));
  return zo_generation{
      0, made.stop, options.prompt.size(), made.tokens, made.prefill_seconds, made.decode_seconds, anonymous.take()};
}

}  // namespace zoexport
