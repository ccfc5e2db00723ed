// Session: text generation, from prompts to decoded text.
#include <ctime>

#include "session/chat/chat.h"
#include "session/generate/stopped_text.h"
#include "session/memory.h"
#include "session/session.h"

namespace zoexport {
namespace {

void add_tokens(std::vector<int64_t>& tokens, const std::vector<int64_t>& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
}

}  // namespace

Status Session::check_generates() const {
  const std::string where = "bundle " + files_.path();
  const std::string expected = "programs that generate";
  if (!manifest_.generate) {
    return Failure{ZO_BUNDLE_ERROR, where, "none", expected, "Compile it again."};
  }
  if (!manifest_.generate->problem.empty()) {
    return Failure{ZO_BUNDLE_ERROR, where, "none: " + manifest_.generate->problem, expected, "See docs/export.md."};
  }
  return {};
}

Result<const Tokenizer*> Session::tokenizer() {
  if (tokenizer_ == nullptr) {
    ZO_ASSIGN(opened, Tokenizer::open(files_, manifest_));
    tokenizer_ = std::make_unique<Tokenizer>(std::move(opened));
  }
  return static_cast<const Tokenizer*>(tokenizer_.get());
}

Status Session::read_prompt(GenerateRequest& request) {
  if (int{request.text.has_value()} + int{!request.messages.empty()} + int{!request.options.prompt.empty()} > 1) {
    return Failure{ZO_INVALID_ARGUMENT, "prompt", "more than one", "one of tokens, a text and messages",
                   "Leave the others out."};
  }
  if (!request.text && request.messages.empty()) {
    return {};
  }
  ZO_ASSIGN(tokenizer, this->tokenizer());
  const TextSpec spec = manifest_.text.value_or(TextSpec());
  std::string written = request.text.value_or("");
  if (!request.messages.empty()) {
    ZO_ASSIGN(chat, Chat::open(spec));
    ZO_ASSIGN(conversation, chat.write(request.messages, request.tools, /*reply=*/true, std::time(nullptr)));
    written = std::move(conversation.text);
  }
  ZO_ASSIGN(tokens, tokenizer->encode(written, request.messages.empty() ? Special::kBefore : Special::kNone));
  request.options.prompt = std::move(tokens);
  if (!request.options.stop_tokens) {
    std::vector<int64_t> stops = manifest_.generate->stop_tokens;
    add_tokens(stops, spec.end_tokens);
    if (!request.messages.empty() && spec.chat) {
      add_tokens(stops, spec.chat->end_tokens);
    }
    request.options.stop_tokens = std::move(stops);
  }
  return {};
}

StateValues Session::untrained() const {
  return [this](size_t slot) { return slots_->bundled(slot); };
}

Result<StateValues> Session::values_of(const GenerateRequest& request) {
  if (request.adapter) {
    ZO_ASSIGN(place, find_adapter(*request.adapter));
    const NamedSlots* named = &place->second;
    return StateValues([named](size_t slot) { return named->value(slot); });
  }
  if (request.untrained) {
    return untrained();
  }
  return finished();
}

Status Session::load_generating() {
  if (generating_ != nullptr) {
    return {};
  }
  const std::string& name = manifest_.generate->engine;
  if (!options_.engine && !name.empty() && name != manifest_.engine) {
    ZO_ASSIGN(engine, make_engine(name));
    generating_engine_ = std::move(engine);
  }
  generating_ =
      std::make_unique<Programs>(manifest_.generate->programs, generating_engine_ ? *generating_engine_ : *engine_);
  return {};
}

Result<Generated> Session::generate(GenerateRequest request) {
  ZO_TRY(check_generates());
  ZO_TRY(check_stops(request.stop_strings));
  ZO_TRY(read_prompt(request));
  ZO_TRY(check_options(manifest_, request.options));
  ZO_ASSIGN(state, values_of(request));
  std::optional<StoppedText> text;
  if (request.wants_text()) {
    ZO_ASSIGN(tokenizer, this->tokenizer());
    text.emplace(*tokenizer, request.stop_strings);
    if (request.text) {
      ZO_TRY(text->follow(*tokenizer, request.options.prompt));
    }
  }
  AnonymousPeak anonymous;
  ZO_TRY(load_generating());
  const auto with = std::make_pair(request.adapter, request.untrained);
  std::unique_ptr<Decoder> decoder = kept_with_ == with ? std::move(kept_) : nullptr;
  kept_.reset();
  if (decoder == nullptr) {
    decoder = std::make_unique<Decoder>(manifest_, *slots_, *generating_, *weights_);
  }
  bool told_to_end = false;
  Status failed;
  const auto say = [&](const std::string& piece) {
    told_to_end = told_to_end || (!piece.empty() && request.on_text && !request.on_text(piece));
  };
  const auto on_token = [&](int64_t token) {
    told_to_end = !request.on_token(token);
    if (text) {
      const auto piece = text->push(token);
      failed = piece.ok() ? Status() : piece.failure();
      say(piece.ok() ? *piece : "");
    }
    return !told_to_end && failed.ok() && !(text && text->stopped());
  };
  ZO_ASSIGN(made, zoexport::generate(manifest_, *decoder, request.options, run_.seed(), state, on_token));
  ZO_TRY(failed);
  Generated result;
  if (text) {
    const bool before = told_to_end;
    say(text->finish());
    told_to_end = before;  // generation has ended: ignore the answer to the last piece
    made.stop = text->stopped() && !told_to_end ? ZO_STOP_STRING : made.stop;
    result.text = text->text();
  }
  if (request.keep) {
    kept_ = std::move(decoder);
    kept_with_ = with;
  }
  result.made = made;
  result.prompt_tokens = request.options.prompt.size();
  result.anonymous_bytes = anonymous.take();
  return result;
}

void Session::forget() {
  const bool held = kept_ != nullptr || tokenizer_ != nullptr;
  kept_.reset();
  tokenizer_.reset();
  if (held) {
    return_freed_memory();
  }
}

}  // namespace zoexport
