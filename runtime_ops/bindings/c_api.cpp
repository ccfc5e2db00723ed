// The C ABI over zoexport::Session. No exception crosses it.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>

#include "bindings/c_dataset.h"
#include "bindings/c_session.h"
#include "bindings/c_support.h"
#include "bindings/handles.h"
#include "engines/engine.h"
#include "engines/packed_weights.h"
#include "kernels/quantize_int4.h"
#include "rng/permutation.h"
#include "rng/variants.h"
#include "session/memory.h"
#include "session/session.h"
#include "session/state/state_description.h"
#include "zoexport/session.h"

using namespace zoexport::c;
using zoexport::Failure;
using zoexport::sized;
using zoexport::SlotForm;
using zoexport::Status;

namespace {

// The first zo_run of this ABI version ended before this field.
constexpr size_t kFirstRun = offsetof(zo_run, momentum);
// Likewise the first zo_info, zo_slot_info, zo_attach_options and zo_evaluation.
constexpr size_t kFirstInfo = offsetof(zo_info, device_bytes);
constexpr size_t kFirstSlotInfo = offsetof(zo_slot_info, dtype);
constexpr size_t kFirstAttachOptions = offsetof(zo_attach_options, last);
constexpr size_t kFirstEvaluation = offsetof(zo_evaluation, margin);

// `before` gives what an older caller's shorter struct lacks.
zoexport::RunSettings from_c(const zo_run& run, const zoexport::RunSettings& before) {
  zoexport::RunSettings settings = before;
  settings.lr = run.lr;
  settings.eps = run.eps;
  settings.seed = run.seed;
  settings.schedule = run.schedule;
  settings.loss = run.loss;
  settings.batch = run.batch;
  settings.accumulate = run.accumulate;
  settings.total_steps = run.total_steps;
  if (run.struct_size >= offsetof(zo_run, reserved)) {
    settings.momentum = run.momentum;
    settings.weight_decay = run.weight_decay;
    settings.clip = run.clip;
    settings.checkpoint_every = run.checkpoint_every;
  }
  if (run.struct_size >= offsetof(zo_run, reserved_too)) {
    settings.difference = run.difference;
  }
  if (run.struct_size >= offsetof(zo_run, reserved_three)) {
    settings.warmup = run.warmup;
  }
  if (run.struct_size >= offsetof(zo_run, choices)) {
    settings.dpo_beta = run.dpo_beta;
    settings.orpo_beta = run.orpo_beta;
  }
  if (run.struct_size >= offsetof(zo_run, keep_mb)) {
    settings.choices = run.choices;
    settings.pack = run.pack != 0;
  }
  if (run.struct_size >= sizeof(zo_run)) {
    settings.keep_mb = run.keep_mb;
    settings.cache_prefix_mb = run.cache_prefix_mb;
  }
  return settings;
}

zo_slot_info to_c(const zoexport::SlotSpec& spec) {
  return {0,
          spec.name.c_str(),
          spec.role.c_str(),
          spec.module.c_str(),
          spec.tensor_id,
          static_cast<int32_t>(spec.shape.size()),
          spec.shape.data(),
          spec.elements,
          spec.dtype};
}

zo_evaluated to_c(const zoexport::Evaluated& evaluated, bool best) {
  return {0,
          best ? 1u : 0u,
          evaluated.step,
          evaluated.found.loss,
          evaluated.found.accuracy,
          evaluated.found.token_accuracy,
          evaluated.found.margin};
}

zo_status read_slot(zo_session* session, const char* name, int32_t which, SlotForm form, void* values, size_t count,
                    zo_error* error) {
  return with_slot(session, name, form, values, count, error, [&](zoexport::Session& impl, size_t slot) -> Status {
    if (which != ZO_SLOT_CURRENT && which != ZO_SLOT_FINISHED && which != ZO_SLOT_GRADIENT) {
      return Failure{ZO_INVALID_ARGUMENT, "which", std::to_string(which), "one of ZO_SLOT_*", "Pass one of them."};
    }
    return impl.read_slot(slot, which, form, values);
  });
}

zo_status write_slot(zo_session* session, const char* name, SlotForm form, const void* values, size_t count,
                     zo_error* error) {
  return with_slot(session, name, form, values, count, error,
                   [&](zoexport::Session& impl, size_t slot) { return impl.write_slot(slot, form, values); });
}

zo_status replay_slot(zo_session* session, const char* name, uint64_t updates, SlotForm form, void* values,
                      size_t count, zo_error* error) {
  return with_slot(session, name, form, values, count, error,
                   [&](zoexport::Session& impl, size_t slot) { return impl.replay_slot(slot, updates, form, values); });
}

// Copies a document to `text` where `size` says that there is room for it, and says there how much it takes.
Status give_json(const nlohmann::json& document, char* text, size_t* size) {
  const std::string found = document.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  const size_t room = *size;
  *size = found.size() + 1;
  if (*size <= room) {
    ZO_REQUIRE(text);
    std::memcpy(text, found.c_str(), *size);
  }
  return {};
}

}  // namespace

uint32_t zo_abi_version(void) { return ZO_ABI_VERSION; }

zo_status zo_session_open(const char* bundle, const zo_open_options* options, zo_session** session, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_TRY(check_path(bundle, "bundle"));
    ZO_REQUIRE(session);
    *session = nullptr;
    zo_open_options given;
    ZO_TRY(read_options(options, given));
    zoexport::OpenOptions chosen;
    chosen.threads = given.threads;
    chosen.skip_hashes = given.skip_hashes != 0;
    chosen.packed = given.cache != nullptr ? given.cache : zoexport::default_packed_folder();
    if (given.engine != nullptr) {
      zo_engine engine;
      ZO_TRY(read_struct(*given.engine, sizeof(zo_engine), "zo_engine", engine));
      ZO_REQUIRE(engine.run);
      chosen.engine = engine;
    }
    chosen.engine_name = given.engine_name != nullptr ? given.engine_name : "";
    ZO_TRY(read_keys(given.trusted_keys, chosen.trusted));
    chosen.kernel_times = given.kernel_times != 0;
    const auto faults = std::make_shared<zoexport::Faults>();
    const zoexport::Faults::Scope scope(faults);
    ZO_ASSIGN(opened, zoexport::Session::open(bundle, chosen));
    ZO_TRY(faults->check());
    *session = new zo_session{std::move(opened), faults};
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

zo_status zo_session_info(zo_session* session, zo_info* info, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(info);
    const zoexport::Manifest& manifest = impl.manifest();
    const zo_info found = {0,
                           manifest.bundle_id.c_str(),
                           manifest.method.c_str(),
                           manifest.target.c_str(),
                           manifest.engine.c_str(),
                           manifest.rows,
                           manifest.seq_len,
                           manifest.copies,
                           impl.queries(),
                           manifest.max_labels,
                           static_cast<uint32_t>(manifest.slots.size()),
                           impl.run().seed,
                           impl.steps(),
                           impl.packed().path.c_str(),
                           impl.packed().problem.c_str(),
                           impl.device_bytes()};
    return write_struct(found, kFirstInfo, "zo_info", info);
  });
}

zo_status zo_session_slot(zo_session* session, uint32_t index, zo_slot_info* slot, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(slot);
    const auto& slots = impl.manifest().slots;
    if (index >= slots.size()) {
      return Failure{ZO_INVALID_ARGUMENT, "index", std::to_string(index), "below " + std::to_string(slots.size()),
                     "Pass an index below zo_info.slots."};
    }
    return write_struct(to_c(slots[index]), kFirstSlotInfo, "zo_slot_info", slot);
  });
}

zo_status zo_session_find_slot(zo_session* session, const char* name, zo_slot_info* slot, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(name);
    ZO_REQUIRE(slot);
    ZO_ASSIGN(index, impl.find_slot(name));
    return write_struct(to_c(impl.manifest().slots[index]), kFirstSlotInfo, "zo_slot_info", slot);
  });
}

zo_status zo_session_program_cost(zo_session* session, uint32_t index, zo_program_cost* cost, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    ZO_REQUIRE(cost);
    const std::vector<zoexport::ProgramCost>& costs = session->impl->costs();
    if (index >= costs.size()) {
      return Failure{ZO_INVALID_ARGUMENT, "index", std::to_string(index), "below " + std::to_string(costs.size()),
                     "Stop at the last program."};
    }
    const zoexport::ProgramCost& spent = costs[index];
    const zo_program_cost found = {0, spent.program->name.c_str(), spent.calls, spent.seconds, spent.load_seconds};
    return write_struct(found, sizeof(zo_program_cost), "zo_program_cost", cost);
  });
}

zo_status zo_session_kernel_cost(zo_session* session, uint32_t index, zo_kernel_cost* cost, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    ZO_REQUIRE(cost);
    const std::vector<zoexport::KernelCost>& costs = session->impl->kernel_costs();
    if (index >= costs.size()) {
      return Failure{ZO_INVALID_ARGUMENT, "index", std::to_string(index), "below " + std::to_string(costs.size()),
                     "Stop at the last kind."};
    }
    const zoexport::KernelCost& spent = costs[index];
    const zo_kernel_cost found = {0, spent.name.c_str(), spent.dispatches, spent.seconds, spent.flops, spent.bytes};
    return write_struct(found, sizeof(zo_kernel_cost), "zo_kernel_cost", cost);
  });
}

zo_status zo_session_attach(zo_session* session, const char* folder, int32_t mode, const uint64_t* seed,
                            zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_TRY(check_path(folder, "folder"));
    zoexport::AttachOptions options;
    options.mode = mode;
    if (seed != nullptr) {
      options.seed = *seed;
    }
    return impl.attach(folder, options);
  });
}

zo_status zo_session_attach_with(zo_session* session, const char* folder, const zo_attach_options* options,
                                 zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_TRY(check_path(folder, "folder"));
    ZO_REQUIRE(options);
    zo_attach_options given;
    ZO_TRY(read_struct(*options, kFirstAttachOptions, "zo_attach_options", given));
    zoexport::AttachOptions chosen;
    chosen.mode = given.mode;
    chosen.recover = given.recover != 0;
    chosen.change_settings = given.change_settings != 0;
    chosen.last = given.last != 0;
    if (given.seed != nullptr) {
      chosen.seed = *given.seed;
    }
    return impl.attach(folder, chosen);
  });
}

zo_status zo_state_describe(const char* folder, char* text, size_t* size, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_TRY(check_path(folder, "folder"));
    ZO_REQUIRE(size);
    ZO_ASSIGN(description, zoexport::describe_state(folder));
    return give_json(description, text, size);
  });
}

zo_status zo_vulkan_devices(char* text, size_t* size, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(size);
    ZO_ASSIGN(devices, zoexport::list_vulkan_devices());
    nlohmann::json found = nlohmann::json::array();
    for (const zoexport::VulkanDevice& device : devices) {
      found.push_back({{"name", device.name},
                       {"kind", device.kind},
                       {"version", device.version},
                       {"problem", device.problem},
                       {"lacks", device.lacks}});
    }
    return give_json(found, text, size);
  });
}

zo_status zo_session_run(zo_session* session, zo_run* run, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(run);
    const zoexport::RunSettings& settings = impl.run();
    const zo_run found = {0,
                          settings.schedule,
                          settings.loss,
                          settings.batch,
                          settings.accumulate,
                          settings.lr,
                          settings.eps,
                          settings.seed,
                          settings.total_steps,
                          settings.momentum,
                          settings.weight_decay,
                          settings.clip,
                          settings.checkpoint_every,
                          0,
                          settings.difference,
                          0,
                          settings.warmup,
                          0,
                          settings.dpo_beta,
                          settings.orpo_beta,
                          settings.choices,
                          settings.pack ? 1 : 0,
                          settings.keep_mb,
                          settings.cache_prefix_mb};
    return write_struct(found, kFirstRun, "zo_run", run);
  });
}

zo_status zo_session_configure(zo_session* session, const zo_run* run, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(run);
    zo_run given;
    ZO_TRY(read_struct(*run, kFirstRun, "zo_run", given));
    return impl.configure(from_c(given, impl.run()));
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
    ZO_ASSIGN(taken, impl.step(dataset->impl, indices, count));
    session->last = std::move(taken);
    const zoexport::StepReport& last = session->last;
    const zo_step found = {0,
                           last.step,
                           last.output.loss,
                           last.lr,
                           last.seconds,
                           last.output.losses.data(),
                           last.output.losses.size(),
                           last.output.gradients.data(),
                           last.output.gradients.size()};
    return write_struct(found, sizeof(zo_step), "zo_step", step);
  });
}

zo_status zo_session_train(zo_session* session, const zo_dataset* dataset, uint64_t total_steps,
                           zo_on_progress on_progress, void* user, zo_error* error) {
  zo_train_options options = sized<zo_train_options>();
  options.total_steps = total_steps;
  options.on_progress = on_progress;
  options.user = user;
  return zo_session_train_with(session, dataset, &options, error);
}

zo_status zo_session_train_with(zo_session* session, const zo_dataset* dataset, const zo_train_options* options,
                                zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(dataset);
    ZO_REQUIRE(options);
    zo_train_options given;
    ZO_TRY(read_struct(*options, sizeof(zo_train_options), "zo_train_options", given));
    if (given.keep < ZO_KEEP_DEFAULT || given.keep > ZO_KEEP_BEST) {
      return Failure{ZO_INVALID_ARGUMENT, "keep", std::to_string(given.keep), "one of ZO_KEEP_*", "Pass one of them."};
    }
    session->cancelled = false;
    zoexport::TrainOptions chosen;
    chosen.total_steps = given.total_steps;
    chosen.go_on = [&](const zo_progress& progress) {
      const bool stop = given.on_progress != nullptr && given.on_progress(given.user, &progress) != 0;
      return !stop && !session->cancelled;
    };
    zoexport::Validation& validation = chosen.validation;
    validation.held_out = given.held_out != nullptr ? &given.held_out->impl : nullptr;
    validation.every = given.every;
    validation.patience = given.patience;
    if (given.keep != ZO_KEEP_DEFAULT) {
      validation.keep_best = given.keep == ZO_KEEP_BEST;
    }
    validation.on_evaluated = [&](const zoexport::Evaluated& evaluated, bool best) {
      zo_evaluated told = to_c(evaluated, best);
      told.struct_size = sizeof(told);
      const bool stop = given.on_evaluated != nullptr && given.on_evaluated(given.user, &told) != 0;
      return !stop && !session->cancelled;
    };
    chosen.part = parts_of(session, given.on_part, given.user);
    return impl.train(dataset->impl, chosen);
  });
}

zo_status zo_session_evaluated(zo_session* session, uint32_t index, zo_evaluated* evaluated, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(evaluated);
    const std::vector<zoexport::Evaluated>& made = impl.evaluated();
    if (index >= made.size()) {
      return beyond_evaluations(index, made.size());
    }
    const zo_evaluated found = to_c(made[index], impl.best() == &made[index]);
    return write_struct(found, sizeof(zo_evaluated), "zo_evaluated", evaluated);
  });
}

zo_status zo_session_evaluate(zo_session* session, const zo_dataset* dataset, zo_on_part on_part, void* user,
                              zo_evaluation* evaluation, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(dataset);
    ZO_REQUIRE(evaluation);
    session->cancelled = false;
    ZO_ASSIGN(result, impl.evaluate(dataset->impl, parts_of(session, on_part, user)));
    return write_struct(result, kFirstEvaluation, "zo_evaluation", evaluation);
  });
}

zo_status zo_session_read_slot(zo_session* session, const char* name, int32_t which, float* values, size_t count,
                               zo_error* error) {
  return read_slot(session, name, which, SlotForm::kFloat32, values, count, error);
}

zo_status zo_session_read_slot_bytes(zo_session* session, const char* name, int32_t which, void* bytes, size_t size,
                                     zo_error* error) {
  return read_slot(session, name, which, SlotForm::kBytes, bytes, size, error);
}

zo_status zo_session_write_slot(zo_session* session, const char* name, const float* values, size_t count,
                                zo_error* error) {
  return write_slot(session, name, SlotForm::kFloat32, values, count, error);
}

zo_status zo_session_write_slot_bytes(zo_session* session, const char* name, const void* bytes, size_t size,
                                      zo_error* error) {
  return write_slot(session, name, SlotForm::kBytes, bytes, size, error);
}

zo_status zo_session_replay_slot(zo_session* session, const char* name, uint64_t updates, float* values, size_t count,
                                 zo_error* error) {
  return replay_slot(session, name, updates, SlotForm::kFloat32, values, count, error);
}

zo_status zo_session_replay_slot_bytes(zo_session* session, const char* name, uint64_t updates, void* bytes,
                                       size_t size, zo_error* error) {
  return replay_slot(session, name, updates, SlotForm::kBytes, bytes, size, error);
}

zo_status zo_session_save(zo_session* session, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status { return impl.save(); });
}

zo_status zo_memory_usage(zo_memory* memory, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(memory);
    return write_struct(zoexport::memory_usage(), sizeof(zo_memory), "zo_memory", memory);
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
