// The C ABI over zoexport::Session. No exception crosses it.
#include <cstdio>
#include <cstring>
#include <new>

#include "engines/packed_weights.h"
#include "rng/permutation.h"
#include "rng/variants.h"
#include "session/memory.h"
#include "session/session.h"
#include "zoexport/session.h"

using zoexport::Failure;
using zoexport::Status;

struct zo_session {
  std::unique_ptr<zoexport::Session> impl;
  zoexport::StepReport last;  // what the pointers of zo_step refer to
};

struct zo_dataset {
  zoexport::Dataset impl;
};

namespace {

// Cuts at a character's boundary, so that the text stays UTF-8.
template <size_t N>
void copy_text(char (&target)[N], const std::string& text) {
  size_t length = text.size() < N ? text.size() : N - 1;
  while (length < text.size() && length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) {
    --length;
  }
  std::memcpy(target, text.data(), length);
  target[length] = '\0';
}

zo_status report(const Failure& failure, zo_error* error) {
  if (error != nullptr) {
    error->code = failure.code;
    copy_text(error->where, failure.where);
    copy_text(error->found, failure.found);
    copy_text(error->expected, failure.expected);
    copy_text(error->fix, failure.fix);
  }
  return failure.code;
}

// Runs a verb's body, which returns a Status, and turns whatever it ends in into a zo_status.
template <typename Body>
zo_status guarded(zo_error* error, Body body) noexcept {
  if (error != nullptr) {
    std::memset(error, 0, sizeof(*error));
  }
  try {
    const Status status = body();
    return status.ok() ? ZO_OK : report(status.failure(), error);
  } catch (const std::bad_alloc&) {
    return report({ZO_INTERNAL_ERROR, "zoexport", "no memory left", "enough for the bundle", "Close other programs."},
                  error);
  } catch (const std::exception& exception) {
    return report({ZO_INTERNAL_ERROR, "zoexport", exception.what(), "no exception", "Report this as a defect."}, error);
  } catch (...) {
    return report({ZO_INTERNAL_ERROR, "zoexport", "an unknown exception", "none", "Report this as a defect."}, error);
  }
}

Failure null_argument(const char* name) {
  return {ZO_INVALID_ARGUMENT, name, "a null pointer", "a value", "Pass one."};
}

#define ZO_REQUIRE(pointer)        \
  if ((pointer) == nullptr) {      \
    return null_argument(#pointer); \
  }

zoexport::RunSettings from_c(const zo_run& run) {
  zoexport::RunSettings settings;
  settings.lr = run.lr;
  settings.eps = run.eps;
  settings.seed = run.seed;
  settings.schedule = run.schedule;
  settings.loss = run.loss;
  settings.batch = run.batch;
  settings.accumulate = run.accumulate;
  settings.total_steps = run.total_steps;
  return settings;
}

Status check_size(uint32_t given, size_t known, const char* name) {
  if (given != known) {
    return Failure{ZO_INVALID_ARGUMENT, std::string(name) + ".struct_size", std::to_string(given),
                   std::to_string(known), "Set it to sizeof; build the host against this library's header."};
  }
  return {};
}

}  // namespace

uint32_t zo_abi_version(void) { return ZO_ABI_VERSION; }

zo_status zo_session_open(const char* bundle, const zo_open_options* options, zo_session** session, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(bundle);
    ZO_REQUIRE(session);
    *session = nullptr;
    zoexport::OpenOptions chosen;
    const bool cache_named = options != nullptr && options->cache != nullptr;
    chosen.packed = cache_named ? options->cache : zoexport::default_packed_folder();
    if (options != nullptr) {
      ZO_TRY(check_size(options->struct_size, sizeof(*options), "zo_open_options"));
      chosen.threads = options->threads;
      chosen.skip_hashes = options->skip_hashes != 0;
      if (options->engine != nullptr) {
        ZO_REQUIRE(options->engine->run);
        chosen.engine = *options->engine;
      }
    }
    ZO_ASSIGN(opened, zoexport::Session::open(bundle, chosen));
    *session = new zo_session{std::move(opened), {}};
    return {};
  });
}

void zo_session_close(zo_session* session) { delete session; }

zo_status zo_session_info(zo_session* session, zo_info* info, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    ZO_REQUIRE(info);
    const zoexport::Manifest& manifest = session->impl->manifest();
    *info = {manifest.bundle_id.c_str(),
             manifest.method.c_str(),
             manifest.target.c_str(),
             manifest.engine.c_str(),
             manifest.rows,
             manifest.seq_len,
             manifest.copies,
             session->impl->queries(),
             manifest.max_labels,
             static_cast<uint32_t>(manifest.slots.size()),
             session->impl->run().seed,
             session->impl->steps(),
             session->impl->packed().path.c_str(),
             session->impl->packed().problem.c_str()};
    return {};
  });
}

zo_status zo_session_slot(zo_session* session, uint32_t index, zo_slot_info* slot, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    ZO_REQUIRE(slot);
    const auto& slots = session->impl->manifest().slots;
    if (index >= slots.size()) {
      return Failure{ZO_INVALID_ARGUMENT, "index", std::to_string(index), "below " + std::to_string(slots.size()),
                     "Pass an index below zo_info.slots."};
    }
    const zoexport::SlotSpec& spec = slots[index];
    *slot = {spec.name.c_str(),
             spec.role.c_str(),
             spec.module.c_str(),
             spec.tensor_id,
             static_cast<int32_t>(spec.shape.size()),
             spec.shape.data(),
             spec.elements};
    return {};
  });
}

zo_status zo_session_program_cost(zo_session* session, uint32_t index, zo_program_cost* cost, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    ZO_REQUIRE(cost);
    const auto programs = session->impl->programs();
    if (index >= programs.size()) {
      return Failure{ZO_INVALID_ARGUMENT, "index", std::to_string(index), "below " + std::to_string(programs.size()),
                     "Stop at the last program."};
    }
    const zoexport::ProgramCost& spent = programs[index]->cost();
    *cost = {programs[index]->spec().name.c_str(), spent.calls, spent.seconds, spent.load_seconds};
    return {};
  });
}

zo_status zo_session_attach(zo_session* session, const char* folder, int32_t mode, const uint64_t* seed,
                            zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    ZO_REQUIRE(folder);
    return session->impl->attach(folder, mode, seed);
  });
}

zo_status zo_session_run(zo_session* session, zo_run* run, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    ZO_REQUIRE(run);
    ZO_TRY(check_size(run->struct_size, sizeof(*run), "zo_run"));
    const zoexport::RunSettings& settings = session->impl->run();
    *run = {sizeof(zo_run),      settings.schedule, settings.loss, settings.batch, settings.accumulate,
            settings.lr,         settings.eps,      settings.seed, settings.total_steps};
    return {};
  });
}

zo_status zo_session_configure(zo_session* session, const zo_run* run, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    ZO_REQUIRE(run);
    ZO_TRY(check_size(run->struct_size, sizeof(*run), "zo_run"));
    return session->impl->configure(from_c(*run));
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

zo_status zo_dataset_load(zo_dataset* dataset, const char* path, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(dataset);
    ZO_REQUIRE(path);
    return dataset->impl.load(path);
  });
}

zo_status zo_session_step(zo_session* session, const zo_dataset* dataset, const uint64_t* indices, size_t count,
                          zo_step* step, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    ZO_REQUIRE(dataset);
    ZO_REQUIRE(indices);
    ZO_REQUIRE(step);
    ZO_ASSIGN(taken, session->impl->step(dataset->impl, indices, count));
    session->last = std::move(taken);
    const zoexport::StepReport& last = session->last;
    *step = {last.step,
             last.output.loss,
             last.lr,
             last.seconds,
             last.output.losses.data(),
             last.output.losses.size(),
             last.output.gradients.data(),
             last.output.gradients.size()};
    return {};
  });
}

zo_status zo_session_train(zo_session* session, const zo_dataset* dataset, uint64_t total_steps,
                           zo_on_progress on_progress, void* user, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    ZO_REQUIRE(dataset);
    return session->impl->train(dataset->impl, total_steps, [&](const zo_progress& progress) {
      return on_progress == nullptr || on_progress(user, &progress) == 0;
    });
  });
}

zo_status zo_session_evaluate(zo_session* session, const zo_dataset* dataset, zo_evaluation* evaluation,
                              zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    ZO_REQUIRE(dataset);
    ZO_REQUIRE(evaluation);
    ZO_ASSIGN(result, session->impl->evaluate(dataset->impl));
    *evaluation = result;
    return {};
  });
}

zo_status zo_session_read_slot(zo_session* session, const char* name, int32_t which, float* values, size_t count,
                               zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    ZO_REQUIRE(name);
    ZO_REQUIRE(values);
    ZO_ASSIGN(slot, session->impl->slot(name, count));
    if (which != ZO_SLOT_CURRENT && which != ZO_SLOT_FINISHED) {
      return Failure{ZO_INVALID_ARGUMENT, "which", std::to_string(which), "ZO_SLOT_CURRENT or ZO_SLOT_FINISHED",
                     "Pass one of them."};
    }
    return session->impl->read_slot(slot, which == ZO_SLOT_FINISHED, values);
  });
}

zo_status zo_session_write_slot(zo_session* session, const char* name, const float* values, size_t count,
                                zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    ZO_REQUIRE(name);
    ZO_REQUIRE(values);
    ZO_ASSIGN(slot, session->impl->slot(name, count));
    return session->impl->write_slot(slot, values);
  });
}

zo_status zo_session_replay_slot(zo_session* session, const char* name, uint64_t updates, float* values, size_t count,
                                 zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    ZO_REQUIRE(name);
    ZO_REQUIRE(values);
    ZO_ASSIGN(slot, session->impl->slot(name, count));
    return session->impl->replay_slot(slot, updates, values);
  });
}

zo_status zo_session_record(zo_session* session, uint64_t index, zo_record* record, float* gradients,
                            zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    ZO_REQUIRE(record);
    const auto& records = session->impl->records();
    if (index >= records.size()) {
      return Failure{ZO_INVALID_ARGUMENT, "index", std::to_string(index), "below " + std::to_string(records.size()),
                     "Pass an index below zo_info.steps."};
    }
    const zoexport::Record& found = records[index];
    *record = {found.step, found.lr, found.eps, found.loss};
    if (gradients != nullptr) {
      std::memcpy(gradients, found.gradients.data(), found.gradients.size() * sizeof(float));
    }
    return {};
  });
}

zo_status zo_session_save(zo_session* session, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(session);
    return session->impl->save();
  });
}

void zo_memory_usage(zo_memory* memory) {
  if (memory != nullptr) {
    *memory = zoexport::memory_usage();
  }
}

void zo_rng_words(uint64_t seed, uint32_t block, uint32_t tensor_id, uint32_t query, uint32_t step,
                  uint32_t words[4]) {
  const uint32_t counter[4] = {block, tensor_id, query, step};
  std::memcpy(words, counter, sizeof(counter));
  zoexport::rng::philox_block(static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), words);
}

void zo_rng_normals(uint64_t seed, uint32_t tensor_id, uint32_t query, uint32_t step, uint64_t first, uint64_t count,
                    float* normals) {
  zoexport::rng::normals({seed, tensor_id, query, step}, first, static_cast<size_t>(count), normals,
                         zoexport::rng::fastest().normal_blocks);
}

void zo_rng_permutation(uint64_t seed, uint32_t epoch, uint32_t count, uint32_t* order) {
  zoexport::rng::permutation(seed, epoch, count, order);
}
