// The C ABI over zoexport::Session. No exception crosses it.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>

#include "bindings/c_dataset.h"
#include "bindings/c_session.h"
#include "engines/engine.h"
#include "kernels/quantize_int4.h"
#include "rng/permutation.h"
#include "rng/variants.h"
#include "session/decimal.h"
#include "session/memory.h"
#include "session/state/state_description.h"
#include "session/storage/files.h"

using namespace zoexport::c;
using nlohmann::json;
using zoexport::Failure;
using zoexport::json_number;
using zoexport::Options;
using zoexport::Result;
using zoexport::Status;

namespace zoexport::c {

Result<zo_session*> open_session(const std::string& bundle, const Options& options, const zo_engine* engine) {
  OpenOptions chosen;
  chosen.threads = options.count("threads");
  chosen.skip_hashes = !options.flag("verify");
  chosen.cache = options.has("cache") ? options.text("cache") : zoexport::default_cache_folder();
  if (engine != nullptr) {
    ZO_REQUIRE(engine->run);
    chosen.engine = *engine;
  }
  chosen.engine_name = options.text("engine");
  ZO_ASSIGN(keys, trusted_keys(options));
  chosen.trusted = std::move(keys);
  chosen.kernel_times = options.flag("kernel_times");
  const auto faults = std::make_shared<Faults>();
  const Faults::Scope scope(faults);
  ZO_ASSIGN(opened, Session::open(bundle, chosen));
  ZO_TRY(faults->check());
  return new zo_session{std::move(opened), faults};
}

json encode_evaluated(const Evaluated& evaluated, bool best) {
  json entry = encode_evaluation(evaluated.found);
  entry["step"] = evaluated.step;
  entry["best"] = best;
  return entry;
}

}  // namespace zoexport::c

uint32_t zo_abi_version(void) { return ZO_ABI_VERSION; }

void zo_free(char* json) { std::free(json); }

zo_status zo_options_check(const char* kind, const char* options, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(kind);
    return Options::check_kind(kind, options);
  });
}

zo_status zo_session_open(const char* bundle, const char* options, const zo_engine* engine, zo_session** session,
                          zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_TRY(check_path(bundle, "bundle"));
    ZO_REQUIRE(session);
    *session = nullptr;
    ZO_ASSIGN(given, Options::parse("open", options));
    ZO_ASSIGN(opened, open_session(bundle, given, engine));
    *session = opened;
    return {};
  });
}

void zo_session_close(zo_session* session) {
  if (session != nullptr && session->busy) {
    session->closing = true;
  } else {
    delete session;
  }
}

void zo_session_cancel(zo_session* session) {
  if (session != nullptr) {
    session->cancelled = true;
  }
}

zo_status zo_session_info(zo_session* session, char** info, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(info);
    const zoexport::Manifest& manifest = impl.manifest();
    json adapters = json::array();
    for (const auto& entry : impl.adapters()) {
      adapters.push_back(entry.first);
    }
    return give({{"bundle_id", manifest.bundle_id},
                 {"method", manifest.method},
                 {"target", manifest.target},
                 {"engine", manifest.engine},
                 {"notice", impl.notice()},
                 {"rows", manifest.rows},
                 {"max_length", manifest.max_length},
                 {"copies", manifest.copies},
                 {"num_queries", impl.queries()},
                 {"max_labels", manifest.max_labels},
                 {"seed", impl.run().seed()},
                 {"steps", impl.steps()},
                 {"device_bytes", impl.device_bytes()},
                 {"adapters", adapters}},
                info);
  });
}

zo_status zo_session_slots(zo_session* session, char** slots, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(slots);
    json found = json::array();
    for (const zoexport::SlotSpec& slot : impl.manifest().slots) {
      found.push_back({{"name", slot.name},
                       {"role", slot.role},
                       {"module", slot.module},
                       {"tensor_id", slot.tensor_id},
                       {"shape", slot.shape},
                       {"dtype", zoexport::dtype_text(slot.dtype)}});
    }
    return give(found, slots);
  });
}

zo_status zo_session_costs(zo_session* session, char** costs, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    ZO_REQUIRE(costs);
    json programs = json::array(), kernels = json::array();
    for (const zoexport::ProgramCost& spent : session->impl->costs()) {
      programs.push_back({{"name", spent.program->name},
                          {"calls", spent.calls},
                          {"seconds", spent.seconds},
                          {"load_seconds", spent.load_seconds}});
    }
    for (const zoexport::KernelCost& spent : session->impl->kernel_costs()) {
      kernels.push_back({{"name", spent.name},
                         {"dispatches", spent.dispatches},
                         {"seconds", json_number(spent.seconds)},
                         {"flops", spent.flops},
                         {"bytes", spent.bytes}});
    }
    return give({{"programs", programs}, {"kernels", kernels}}, costs);
  });
}

zo_status zo_session_attach(zo_session* session, const char* folder, const char* options, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_TRY(check_path(folder, "folder"));
    ZO_ASSIGN(given, Options::parse("attach", options));
    zoexport::AttachOptions chosen;
    chosen.read_only = given.flag("read_only");
    chosen.recover = given.flag("recover");
    chosen.change_settings = given.flag("change_settings");
    chosen.last = given.flag("last");
    if (given.has("seed")) {
      chosen.seed = given.whole("seed");
    }
    return impl.attach(folder, chosen);
  });
}

zo_status zo_state_describe(const char* folder, char** description, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_TRY(check_path(folder, "folder"));
    ZO_REQUIRE(description);
    ZO_ASSIGN(found, zoexport::describe_state(folder));
    return give(found, description);
  });
}

zo_status zo_vulkan_devices(char** devices, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(devices);
    ZO_ASSIGN(listed, zoexport::list_vulkan_devices());
    json found = json::array();
    for (const zoexport::VulkanDevice& device : listed) {
      found.push_back({{"name", device.name},
                       {"kind", device.kind},
                       {"version", device.version},
                       {"problem", device.problem},
                       {"lacks", device.lacks}});
    }
    return give(found, devices);
  });
}

zo_status zo_session_settings(zo_session* session, char** settings, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(settings);
    return give(impl.run().given(), settings);
  });
}

zo_status zo_session_configure(zo_session* session, const char* settings, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_ASSIGN(given, zoexport::parse_options(settings, "settings"));
    return impl.configure(given);
  });
}

zo_dataset* zo_dataset_new(void) { return new (std::nothrow) zo_dataset; }

void zo_dataset_free(zo_dataset* dataset) { delete dataset; }

uint64_t zo_dataset_size(const zo_dataset* dataset) { return dataset == nullptr ? 0 : dataset->impl.size(); }

zo_status zo_dataset_add(zo_dataset* dataset, const zo_candidate* candidates, size_t count, size_t target,
                         zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(dataset);
    return dataset->impl.add(candidates, count, target, "example " + std::to_string(dataset->impl.size()));
  });
}

zo_status zo_dataset_digest(const zo_dataset* dataset, char digest[65], zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(dataset);
    ZO_REQUIRE(digest);
    const std::string found = dataset->impl.digest();
    std::memcpy(digest, found.c_str(), found.size() + 1);
    return {};
  });
}

zo_status zo_dataset_load(zo_dataset* dataset, const char* path, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(dataset);
    ZO_TRY(check_path(path, "path"));
    return dataset->impl.load(path);
  });
}

zo_status zo_dataset_write(const zo_dataset* dataset, const char* path, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(dataset);
    ZO_TRY(check_path(path, "path"));
    return dataset->impl.write(path);
  });
}

zo_status zo_session_step(zo_session* session, const zo_dataset* dataset, const uint64_t* indices, size_t count,
                          zo_step* step, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(dataset);
    ZO_REQUIRE(indices);
    ZO_REQUIRE(step);
    ZO_ASSIGN(report, impl.step(dataset->impl, indices, count));
    session->last = std::move(report);
    const zoexport::StepReport& last = session->last;
    *step = {last.step,
             last.output.loss,
             last.learning_rate,
             last.seconds,
             last.output.losses.data(),
             last.output.losses.size(),
             last.output.gradients.data(),
             last.output.gradients.size()};
    return {};
  });
}

zo_status zo_session_train(zo_session* session, const zo_dataset* dataset, const zo_dataset* held_out,
                           const char* options, const zo_train_callbacks* callbacks, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(dataset);
    ZO_ASSIGN(given, Options::parse("train", options));
    if (!given.has("steps")) {
      return Failure{ZO_INVALID_ARGUMENT, "option 'steps'", "nothing", "the number of steps in total", "Pass it."};
    }
    const zo_train_callbacks told = callbacks == nullptr ? zo_train_callbacks{} : *callbacks;
    session->cancelled = false;
    zoexport::TrainOptions chosen;
    chosen.total_steps = given.whole("steps");
    chosen.go_on = [&](const zo_progress& progress) {
      const bool stop = told.on_progress != nullptr && told.on_progress(told.user, &progress) != 0;
      return !stop && !session->cancelled;
    };
    zoexport::Validation& validation = chosen.validation;
    validation.held_out = held_out != nullptr ? &held_out->impl : nullptr;
    validation.every = given.has("eval_every") ? given.count("eval_every") : 0;
    validation.patience = given.has("patience") ? given.count("patience") : 0;
    if (given.has("keep")) {
      validation.keep_best = given.text("keep") == "best";
    }
    validation.on_evaluated = [&](const zoexport::Evaluated& evaluated, bool best) {
      return !stops(told.on_evaluation, told.user, encode_evaluated(evaluated, best)) && !session->cancelled;
    };
    chosen.part = parts_of(session, told.on_part, told.user);
    return impl.train(dataset->impl, chosen);
  });
}

zo_status zo_session_evaluations(zo_session* session, char** evaluations, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(evaluations);
    json found = json::array();
    for (const zoexport::Evaluated& one : impl.evaluated()) {
      found.push_back(encode_evaluated(one, impl.best() == &one));
    }
    return give(found, evaluations);
  });
}

zo_status zo_session_evaluate(zo_session* session, const zo_dataset* dataset, zo_on_part on_part, void* user,
                              char** evaluation, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(dataset);
    ZO_REQUIRE(evaluation);
    session->cancelled = false;
    ZO_ASSIGN(result, impl.evaluate(dataset->impl, parts_of(session, on_part, user)));
    json found = encode_evaluation(result);
    found["examples"] = result.examples;
    return give(found, evaluation);
  });
}

zo_status zo_session_score(zo_session* session, const zo_dataset* dataset, zo_on_part on_part, void* user,
                           char** scores, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(dataset);
    ZO_REQUIRE(scores);
    session->cancelled = false;
    ZO_ASSIGN(scored, impl.score(dataset->impl, parts_of(session, on_part, user)));
    json found = json::array();
    for (const auto& example : scored) {
      json& candidates = found.emplace_back(json::array());
      for (const zoexport::CandidateScore& one : example) {
        candidates.push_back({{"logprob", one.logprob}, {"labels", one.labels}, {"argmax", one.argmax}});
      }
    }
    return give(found, scores);
  });
}

zo_status zo_session_read_slot(zo_session* session, const char* name, int32_t which, void* values, size_t bytes,
                               zo_error* error) {
  return with_slot(session, name, values, bytes, error, [&](zoexport::Session& impl, size_t slot) -> Status {
    if (which != ZO_SLOT_CURRENT && which != ZO_SLOT_FINISHED && which != ZO_SLOT_GRADIENT) {
      return Failure{ZO_INVALID_ARGUMENT, "which", std::to_string(which), "one of ZO_SLOT_*", "Pass one of them."};
    }
    return impl.read_slot(slot, which, values);
  });
}

zo_status zo_session_write_slot(zo_session* session, const char* name, const void* values, size_t bytes,
                                zo_error* error) {
  return with_slot(session, name, values, bytes, error,
                   [&](zoexport::Session& impl, size_t slot) { return impl.write_slot(slot, values); });
}

zo_status zo_session_replay_slot(zo_session* session, const char* name, uint64_t updates, void* values, size_t bytes,
                                 zo_error* error) {
  return with_slot(session, name, values, bytes, error,
                   [&](zoexport::Session& impl, size_t slot) { return impl.replay_slot(slot, updates, values); });
}

zo_status zo_session_save(zo_session* session, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status { return impl.save(); });
}

zo_status zo_memory_usage(char** memory, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(memory);
    const zoexport::MemoryUsage usage = zoexport::memory_usage();
    return give({{"rss_bytes", usage.rss_bytes},
                 {"peak_rss_bytes", usage.peak_rss_bytes},
                 {"anonymous_bytes", usage.anonymous_bytes}},
                memory);
  });
}

void zo_rng_words(uint64_t seed, uint32_t block, uint32_t tensor_id, uint32_t query, uint32_t step, uint32_t words[4]) {
  const uint32_t counter[4] = {block, tensor_id, query, step};
  std::memcpy(words, counter, sizeof(counter));
  zoexport::rng::philox_block(static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), words);
}

void zo_rng_signs(uint64_t seed, uint32_t tensor_id, uint32_t query, uint32_t step, uint64_t first, uint64_t count,
                  float* signs) {
  zoexport::rng::signs({seed, tensor_id, query, step}, first, static_cast<size_t>(count), signs,
                       zoexport::rng::fastest().sign_blocks);
}

void zo_rng_normals(uint64_t seed, uint32_t tensor_id, uint32_t query, uint32_t step, uint64_t first, uint64_t count,
                    float* normals) {
  zoexport::rng::normals({seed, tensor_id, query, step}, first, static_cast<size_t>(count), normals,
                         zoexport::rng::fastest().normal_blocks);
}

void zo_rng_permutation(uint64_t seed, uint32_t epoch, uint32_t count, uint32_t* order) {
  zoexport::rng::permutation(seed, epoch, count, order);
}

void zo_quantize_int4(const float* weights, uint64_t groups, uint64_t group_size, uint8_t* codes, uint16_t* scales) {
  zoexport::kernels::quantize_int4(weights, static_cast<size_t>(groups), static_cast<size_t>(group_size), codes,
                                   scales);
}
