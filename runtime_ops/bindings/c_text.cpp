// The C ABI over zoexport::Tokenizer, for hosts that need a bundle's text and none of its programs.
#include <algorithm>
#include <cstddef>
#include <ctime>
#include <memory>

#include "bindings/c_dataset.h"
#include "bindings/c_support.h"
#include "session/examples/text_examples.h"
#include "session/manifest/bundle_files.h"
#include "session/memory.h"
#include "session/text/tokenizer.h"

using namespace zoexport::c;
using nlohmann::json;
using zoexport::Message;
using zoexport::Options;
using zoexport::Status;

struct zo_tokenizer {
  zoexport::Manifest manifest;
  zoexport::Tokenizer impl;
};

namespace {

// Copies all or nothing, and gives the needed length.
template <typename T, typename From>
void hand_out(const From& from, T* into, size_t* room) {
  const size_t needed = from.size();
  if (needed <= *room) {
    std::copy(from.begin(), from.end(), into);
  }
  *room = needed;
}

Status check_room(const void* into, const size_t* room) {
  ZO_REQUIRE(room);
  if (*room > 0) {
    ZO_REQUIRE(into);
  }
  return {};
}

zoexport::TextSpec text_spec(const zoexport::Manifest& manifest) {
  return manifest.text.value_or(zoexport::TextSpec());
}

Message record_json(const zoexport::Record& record) {
  if (const auto* text = std::get_if<zoexport::TextRecord>(&record)) {
    return {{"text", text->text}};
  }
  if (const auto* chat = std::get_if<zoexport::ChatRecord>(&record)) {
    Message found = {{"messages", chat->messages}};
    if (chat->rejected) {
      found["rejected"] = *chat->rejected;
    }
    if (!chat->tools.empty()) {
      found["tools"] = chat->tools;
    }
    return found;
  }
  const auto& completion = std::get<zoexport::CompletionRecord>(record);
  return {{"prompt", completion.prompt}, {"completions", completion.completions}, {"pair", completion.pair}};
}

Message example_json(const zoexport::TextExample& example) {
  Message candidates = Message::array();
  for (size_t i = 0; i < example.tokens.size(); ++i) {
    candidates.push_back({{"tokens", example.tokens[i]}, {"labels", example.labels[i]}});
  }
  return {{"record", record_json(example.record)},
          {"candidates", std::move(candidates)},
          {"target", example.target},
          {"length", example.length},
          {"shortened", example.shortened},
          {"last_turn_only", example.last_turn_only},
          {"merged", example.merged},
          {"unused", example.unused}};
}

Message problem_json(const zoexport::Failure& failure) {
  return {{"where", failure.where}, {"found", failure.found}, {"expected", failure.expected}, {"fix", failure.fix}};
}

zoexport::Failure stopped(const std::string& where) {
  return {ZO_CANCELLED, where, "a request to stop", "the file to be read to its end", "Read it again."};
}

// Return how a bundle's examples are read, with the settings of a run.
zoexport::Result<zoexport::ReadOptions> read_options(const zoexport::Manifest& manifest, const char* options) {
  ZO_ASSIGN(given, Options::parse("read", options));
  const bool masked = manifest.pad_token.has_value(), pack = given.flag("pack");
  const int32_t loss = zoexport::loss_from_text(given.text("loss"));
  ZO_TRY(zoexport::check_pack(pack, masked, loss));
  return zoexport::ReadOptions{manifest.max_length,      manifest.vocab_size,       masked, loss, pack,
                               given.flag("append_eos"), given.flag("mask_history")};
}

}  // namespace

zo_status zo_tokenizer_open(const char* bundle, const char* options, zo_tokenizer** tokenizer, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(bundle);
    ZO_REQUIRE(tokenizer);
    *tokenizer = nullptr;
    ZO_ASSIGN(given, Options::parse("tokenizer", options));
    ZO_ASSIGN(trusted, trusted_keys(given));
    ZO_ASSIGN(folder, zoexport::open_bundle(bundle));
    ZO_ASSIGN(manifest, zoexport::read_manifest(folder, trusted ? &*trusted : nullptr));
    const zoexport::BundleFiles files(std::move(folder), manifest, !given.flag("verify") && !trusted);
    ZO_ASSIGN(opened, zoexport::Tokenizer::open(files, manifest));
    *tokenizer = new zo_tokenizer{manifest, std::move(opened)};
    return {};
  });
}

zo_status zo_tokenizer_parse(const char* content, const char* options, zo_tokenizer** tokenizer, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(content);
    ZO_REQUIRE(tokenizer);
    *tokenizer = nullptr;
    ZO_ASSIGN(given, Options::parse("uncompiled", options));
    zoexport::Manifest manifest;
    manifest.max_length = given.count("max_length");
    manifest.vocab_size = static_cast<int64_t>(given.whole("vocab_size"));
    if (given.flag("masked")) {
      manifest.pad_token = 0;
    }
    zoexport::JsonProblems problems(ZO_INVALID_ARGUMENT, "option 'text'", "Pass the manifest's member text.");
    manifest.text =
        zoexport::read_text_spec(zoexport::JsonNode(&given.value("text"), "", &problems), manifest.vocab_size);
    ZO_TRY(problems.status());
    ZO_ASSIGN(parsed, zoexport::Tokenizer::parse(content, "tokenizer of the model"));
    *tokenizer = new zo_tokenizer{std::move(manifest), std::move(parsed)};
    return {};
  });
}

void zo_tokenizer_close(zo_tokenizer* tokenizer) {
  if (tokenizer != nullptr) {
    delete tokenizer;
    zoexport::return_freed_memory();
  }
}

zo_status zo_tokenizer_encode(zo_tokenizer* tokenizer, const char* text, size_t size, int32_t special, int64_t* tokens,
                              size_t* count, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(tokenizer);
    if (size > 0) {
      ZO_REQUIRE(text);
    }
    ZO_TRY(check_room(tokens, count));
    ZO_ASSIGN(ids,
              tokenizer->impl.encode({text, size}, special != 0 ? zoexport::Special::kAll : zoexport::Special::kNone));
    hand_out(ids, tokens, count);
    return {};
  });
}

zo_status zo_tokenizer_decode(zo_tokenizer* tokenizer, const int64_t* tokens, size_t count, int32_t special, char* text,
                              size_t* size, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(tokenizer);
    if (count > 0) {
      ZO_REQUIRE(tokens);
    }
    ZO_TRY(check_room(text, size));
    ZO_ASSIGN(decoded, tokenizer->impl.decode({tokens, tokens + count}, special == 0));
    hand_out(decoded, text, size);
    return {};
  });
}

zo_status zo_tokenizer_chat(zo_tokenizer* tokenizer, const char* options, char** chat, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(tokenizer);
    ZO_REQUIRE(chat);
    ZO_ASSIGN(given, Options::parse("chat", options));
    ZO_ASSIGN(messages, read_messages(given));
    if (messages.empty()) {
      return zoexport::Failure{ZO_DATA_ERROR, "messages", "none", "at least one", "Give the user's message."};
    }
    ZO_ASSIGN(opened, zoexport::Chat::open(text_spec(tokenizer->manifest)));
    ZO_ASSIGN(made, opened.write(messages, given.in_order("tools"), given.flag("reply"), std::time(nullptr)));
    return give({{"text", made.text}}, chat);
  });
}

zo_status zo_prompts_read(const char* path, zo_on_json on_prompt, void* user, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_TRY(check_path(path, "path"));
    ZO_REQUIRE(on_prompt);
    const std::string file = path;
    return zoexport::for_lines(file, [&](const std::string& line, size_t number) -> Status {
      const std::string where = file + ":" + std::to_string(number);
      ZO_ASSIGN(prompt, zoexport::parse_prompt(line, where));
      Message told = {{"where", where}, {"answers", prompt.answers}};
      if (prompt.messages.empty()) {
        told["prompt"] = prompt.text;
      } else {
        told["messages"] = prompt.messages;
        told["tools"] = prompt.tools;
      }
      return stops(on_prompt, user, told) ? Status(stopped(where)) : Status();
    });
  });
}

zo_status zo_examples_read(zo_tokenizer* tokenizer, const char* path, const char* options, zo_on_json on_example,
                           void* user, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(tokenizer);
    ZO_TRY(check_path(path, "path"));
    ZO_REQUIRE(on_example);
    ZO_ASSIGN(chosen, read_options(tokenizer->manifest, options));
    const auto take = [&](zoexport::Result<zoexport::TextExample> example, size_t line,
                          const std::string& where) -> Status {
      zoexport::Dataset alone;
      const Status usable = example.ok() ? example->add_to(alone, where) : Status(example.failure());
      Message told = usable.ok() ? example_json(*example) : Message{{"problem", problem_json(usable.failure())}};
      told["line"] = line;
      return stops(on_example, user, told) ? Status(stopped(where)) : Status();
    };
    return zoexport::for_examples(path, tokenizer->impl, text_spec(tokenizer->manifest), chosen, take, {});
  });
}

zo_status zo_dataset_read(zo_dataset* dataset, zo_tokenizer* tokenizer, const char* path, const char* options,
                          zo_on_part on_part, void* user, char** report, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(dataset);
    ZO_REQUIRE(tokenizer);
    ZO_TRY(check_path(path, "path"));
    const zoexport::Manifest& manifest = tokenizer->manifest;
    ZO_ASSIGN(chosen, read_options(manifest, options));
    zoexport::Dataset grown = dataset->impl;
    ZO_ASSIGN(read,
              zoexport::read_examples(path, tokenizer->impl, text_spec(manifest), chosen, grown, Parts(on_part, user)));
    if (report != nullptr) {
      ZO_TRY(give({{"examples", read.examples},
                   {"shortened", read.shortened},
                   {"longest", read.longest},
                   {"note", read.note(manifest.max_length)}},
                  report));
    }
    dataset->impl = std::move(grown);
    return {};
  });
}
