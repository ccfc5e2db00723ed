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
#include "session/storage/faults.h"
#include "session/text/chat.h"
#include "session/text/tokenizer.h"
#include "zoexport/session.h"

using namespace zoexport::c;
using zoexport::Status;

struct zo_tokenizer {
  zoexport::Manifest manifest;
  zoexport::Tokenizer impl;
};

namespace {

// Copies what fits, all or nothing, and says what is needed.
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

}  // namespace

zo_status zo_tokenizer_open(const char* bundle, const zo_open_options* options, zo_tokenizer** tokenizer,
                            zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(bundle);
    ZO_REQUIRE(tokenizer);
    *tokenizer = nullptr;
    zo_open_options given;
    ZO_TRY(read_options(options, given));
    std::optional<zoexport::TrustedKeys> trusted;
    ZO_TRY(read_keys(given.trusted_keys, trusted));
    ZO_ASSIGN(folder, zoexport::open_bundle(bundle));
    ZO_ASSIGN(manifest, zoexport::read_manifest(folder, trusted ? &*trusted : nullptr));
    const zoexport::BundleFiles files(std::move(folder), manifest, given.skip_hashes != 0 && !trusted);
    ZO_ASSIGN(opened, zoexport::Tokenizer::open(files, manifest));
    *tokenizer = new zo_tokenizer{manifest, std::move(opened)};
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

zo_status zo_tokenizer_chat(zo_tokenizer* tokenizer, const zo_message* messages, size_t count, int32_t reply,
                            char* text, size_t* size, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(tokenizer);
    if (count > 0) {
      ZO_REQUIRE(messages);
    }
    ZO_TRY(check_room(text, size));
    std::vector<zoexport::Message> conversation;
    for (size_t i = 0; i < count; ++i) {
      ZO_REQUIRE(messages[i].role);
      ZO_REQUIRE(messages[i].content);
      conversation.push_back({messages[i].role, messages[i].content});
    }
    const zoexport::TextSpec spec = tokenizer->manifest.text.value_or(zoexport::TextSpec());
    ZO_ASSIGN(rendered, zoexport::chat_text(spec, conversation, reply != 0, std::time(nullptr)));
    hand_out(rendered, text, size);
    return {};
  });
}

zo_status zo_prompts_read(const char* path, zo_on_prompt on_prompt, void* user, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_TRY(check_path(path, "path"));
    ZO_REQUIRE(on_prompt);
    const std::string file = path;
    return zoexport::for_lines(file, [&](const std::string& line, size_t number) -> Status {
      const std::string where = file + ":" + std::to_string(number);
      ZO_ASSIGN(prompt, zoexport::parse_prompt(line, where));
      std::vector<zo_message> messages;
      messages.reserve(prompt.messages.size());
      for (const zoexport::Message& one : prompt.messages) {
        messages.push_back({one.role.c_str(), one.content.c_str()});
      }
      const zo_prompt told = {sizeof(zo_prompt), prompt.text.data(), prompt.text.size(), messages.data(),
                              messages.size()};
      return on_prompt(user, &told) == 0
                 ? Status()
                 : Status(zoexport::Failure{ZO_CANCELLED, where, "a request to stop", "the file to be read to its end",
                                            "Read it again."});
    });
  });
}

zo_status zo_dataset_read(zo_dataset* dataset, zo_tokenizer* tokenizer, const char* path, int32_t loss,
                          zo_on_part on_part, void* user, zo_read_report* report, zo_error* error) {
  const zo_read_options options = {sizeof(zo_read_options), loss, 0};
  return zo_dataset_read_with(dataset, tokenizer, path, &options, on_part, user, report, error);
}

zo_status zo_dataset_read_with(zo_dataset* dataset, zo_tokenizer* tokenizer, const char* path,
                               const zo_read_options* options, zo_on_part on_part, void* user, zo_read_report* report,
                               zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(dataset);
    ZO_REQUIRE(tokenizer);
    ZO_REQUIRE(options);
    ZO_TRY(check_path(path, "path"));
    zo_read_options given;
    ZO_TRY(read_struct(*options, sizeof(zo_read_options), "zo_read_options", given));
    if (!zoexport::is_loss(given.loss)) {
      return zoexport::Failure{ZO_INVALID_ARGUMENT, "loss", std::to_string(given.loss), "one of ZO_LOSS_*",
                               "Pass one of them."};
    }
    const zoexport::Manifest& manifest = tokenizer->manifest;
    const bool masked = manifest.pad_token.has_value(), pack = given.pack != 0;
    ZO_TRY(zoexport::check_pack(pack, masked, given.loss));
    const zoexport::ReadOptions chosen{manifest.seq_len, manifest.vocab_size, masked, given.loss, pack};
    const zoexport::TextSpec spec = manifest.text.value_or(zoexport::TextSpec());
    zoexport::Dataset grown = dataset->impl;
    ZO_ASSIGN(read, zoexport::read_examples(path, tokenizer->impl, spec, chosen, grown, Parts(on_part, user)));
    if (report != nullptr) {
      zo_read_report told = {0, read.examples, read.shortened, read.longest, {}};
      const std::string note = read.note(manifest.seq_len);
      note.copy(told.note, sizeof(told.note) - 1);
      ZO_TRY(write_struct(told, offsetof(zo_read_report, longest), "zo_read_report", report));
    }
    dataset->impl = std::move(grown);
    return {};
  });
}
