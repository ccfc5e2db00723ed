// The C ABI over zoexport::Job.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <utility>

#include "bindings/c_support.h"
#include "job/conditions.h"
#include "job/job.h"
#include "session/examples/typed.h"
#include "session/storage/files.h"
#include "zoexport/job.h"

using namespace zoexport::c;
using zoexport::Failure;
using zoexport::Status;

struct zo_job {
  zoexport::Job impl;
  zoexport::JobRecord requested{};  // what the strings of zo_job_requested point to
};

namespace {

// The sizes of the first structs of these kinds.
constexpr size_t kFirstRequest = offsetof(zo_job_request, eval_every), kFirstView = offsetof(zo_job_view, evaluations);

// An absolute path as the job keeps it: where the process is may be another place when it goes on.
std::string absolute(const char* path) { return std::filesystem::absolute(path).lexically_normal().string(); }

zoexport::Result<zoexport::Typed> typed_of(const zo_typed_example& example) {
  if (example.prompt != nullptr || example.completion != nullptr) {
    ZO_REQUIRE(example.prompt);
    ZO_REQUIRE(example.completion);
    if (example.message_count > 0) {
      return Failure{ZO_INVALID_ARGUMENT, "zo_typed_example", "a prompt and messages", "one of them",
                     "Leave the other form's fields at NULL."};
    }
    return zoexport::Typed(std::make_pair(example.prompt, example.completion));
  }
  if (example.message_count > 0) {
    ZO_REQUIRE(example.messages);
  }
  std::vector<zoexport::Message> messages;
  for (size_t i = 0; i < example.message_count; ++i) {
    ZO_REQUIRE(example.messages[i].role);
    ZO_REQUIRE(example.messages[i].content);
    messages.push_back({example.messages[i].role, example.messages[i].content});
  }
  return zoexport::Typed(std::move(messages));
}

}  // namespace

zo_status zo_limits_default(zo_limits* limits, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(limits);
    return write_struct(zoexport::default_limits(), sizeof(zo_limits), "zo_limits", limits);
  });
}

zo_status zo_typed_write(const char* path, const zo_typed_example* examples, size_t count, int32_t append,
                         zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_TRY(check_path(path, "path"));
    if (count > 0) {
      ZO_REQUIRE(examples);
    }
    std::string lines;
    if (append != 0 && zoexport::exists(path)) {
      ZO_ASSIGN(before, zoexport::read_file(path, ZO_DATA_ERROR));
      lines = before.empty() || before.back() == '\n' ? before : before + "\n";
    }
    const auto* bytes = reinterpret_cast<const unsigned char*>(examples);
    for (size_t i = 0; i < count; ++i) {
      zo_typed_example example;
      ZO_TRY(read_struct(*reinterpret_cast<const zo_typed_example*>(bytes + i * examples->struct_size),
                         sizeof(zo_typed_example), "zo_typed_example", example));
      ZO_ASSIGN(typed, typed_of(example));
      ZO_ASSIGN(line, zoexport::typed_line(typed, "example " + std::to_string(i + 1)));
      lines += line + "\n";
    }
    return zoexport::write_file(path, [&](int file) { return zoexport::write_all(file, lines.data(), lines.size()); });
  });
}

zo_status zo_job_open(const char* folder, zo_job** job, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_TRY(check_path(folder, "folder"));
    ZO_REQUIRE(job);
    *job = nullptr;
    std::string path = absolute(folder);
    if (path.size() > 1 && path.back() == '/') {
      path.pop_back();
    }
    ZO_TRY(zoexport::make_folder(path));
    *job = new zo_job{zoexport::Job(std::move(path))};
    return {};
  });
}

void zo_job_close(zo_job* job) { delete job; }

zo_status zo_job_start(zo_job* job, const zo_job_request* request, int32_t answer, const zo_open_options* options,
                       zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(job);
    ZO_REQUIRE(request);
    zo_job_request given;
    ZO_TRY(read_struct(*request, kFirstRequest, "zo_job_request", given));
    ZO_TRY(check_path(given.bundle, "bundle"));
    ZO_TRY(check_path(given.data, "data"));
    if (answer < ZO_JOB_ASK || answer > ZO_JOB_ANEW) {
      return Failure{ZO_INVALID_ARGUMENT, "answer", std::to_string(answer), "ZO_JOB_ASK, _CONTINUE or _ANEW",
                     "Pass one of them."};
    }
    if (given.steps == 0) {
      return Failure{ZO_INVALID_ARGUMENT, "steps", "0", "at least 1", "Ask for more steps."};
    }
    if (!(given.lr >= 0) || !std::isfinite(given.lr)) {
      return Failure{ZO_INVALID_ARGUMENT, "lr", std::to_string(given.lr), "a number above 0, or 0 for the bundle's",
                     "Correct the learning rate."};
    }
    if (given.keep < ZO_KEEP_DEFAULT || given.keep > ZO_KEEP_BEST) {
      return Failure{ZO_INVALID_ARGUMENT, "keep", std::to_string(given.keep), "one of ZO_KEEP_*", "Pass one of them."};
    }
    if (given.held_out == nullptr && (given.eval_every != 0 || given.patience != 0 || given.keep != ZO_KEEP_DEFAULT)) {
      return Failure{ZO_INVALID_ARGUMENT, "eval_every, patience or keep", "no held_out",
                     "held-out examples to evaluate on", "Pass some, or leave these at 0."};
    }
    zoexport::JobRecord asked;
    asked.bundle = absolute(given.bundle);
    asked.data = absolute(given.data);
    asked.held_out = given.held_out == nullptr ? "" : absolute(given.held_out);
    asked.steps = given.steps;
    asked.lr = given.lr;
    asked.evaluate = given.evaluate != 0;
    asked.eval_every = given.eval_every;
    asked.patience = given.patience;
    asked.keep = given.keep;
    asked.engine_name = given.engine_name == nullptr ? "" : given.engine_name;
    zo_open_options open;
    ZO_TRY(read_options(options, open));
    return job->impl.start(asked, answer, open);
  });
}

zo_status zo_job_run(zo_job* job, const zo_job_host* host, const zo_open_options* options, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(job);
    zoexport::JobHost known;
    known.limits = zoexport::default_limits();
    if (host != nullptr) {
      zo_job_host given;
      ZO_TRY(read_struct(*host, sizeof(zo_job_host), "zo_job_host", given));
      known.user = given.user;
      known.conditions = given.conditions;
      known.changed = given.changed;
      if (given.limits != nullptr) {
        ZO_TRY(read_struct(*given.limits, sizeof(zo_limits), "zo_limits", known.limits));
        ZO_TRY(zoexport::check_limits(known.limits));
      }
    }
    zo_open_options open;
    ZO_TRY(read_options(options, open));
    return job->impl.run(known, open);
  });
}

void zo_job_pause(zo_job* job, int32_t reason) {
  if (job != nullptr) {
    job->impl.pause(reason);
  }
}

zo_status zo_job_cancel(zo_job* job, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(job);
    return job->impl.cancel();
  });
}

zo_status zo_job_discard(zo_job* job, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(job);
    return job->impl.discard();
  });
}

zo_status zo_job_view_of(zo_job* job, zo_job_view* view, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(job);
    ZO_REQUIRE(view);
    return write_struct(job->impl.view(), kFirstView, "zo_job_view", view);
  });
}

zo_status zo_job_losses(zo_job* job, zo_loss_point* points, size_t* count, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(job);
    ZO_REQUIRE(count);
    const std::vector<zo_loss_point> found = job->impl.losses();
    if (found.size() <= *count && !found.empty()) {
      ZO_REQUIRE(points);
      std::copy(found.begin(), found.end(), points);
    }
    *count = found.size();
    return {};
  });
}

zo_status zo_job_evaluated(zo_job* job, uint32_t index, zo_evaluated* evaluated, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(job);
    ZO_REQUIRE(evaluated);
    const std::vector<zo_evaluated> found = job->impl.evaluations();
    if (index >= found.size()) {
      return beyond_evaluations(index, found.size());
    }
    return write_struct(found[index], sizeof(zo_evaluated), "zo_evaluated", evaluated);
  });
}

void zo_job_problem(zo_job* job, zo_error* problem) {
  guarded(problem, [&]() -> Status {
    ZO_REQUIRE(job);
    ZO_REQUIRE(problem);
    const Failure found = job->impl.problem();
    return found.code == ZO_OK ? Status() : Status(found);
  });
}

zo_status zo_job_requested(zo_job* job, zo_job_request* request, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(job);
    ZO_REQUIRE(request);
    job->requested = job->impl.record().value_or(zoexport::JobRecord());
    const zoexport::JobRecord& found = job->requested;
    const zo_job_request filled = {0,
                                   found.evaluate ? 1 : 0,
                                   found.bundle.c_str(),
                                   found.data.c_str(),
                                   found.held_out.c_str(),
                                   found.steps,
                                   found.lr,
                                   found.eval_every,
                                   found.patience,
                                   found.keep,
                                   0,
                                   found.engine_name.c_str()};
    return write_struct(filled, kFirstRequest, "zo_job_request", request);
  });
}

zo_status zo_job_session(zo_job* job, const zo_open_options* options, zo_session** session, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(job);
    ZO_REQUIRE(session);
    *session = nullptr;
    zo_open_options open;
    ZO_TRY(read_options(options, open));
    ZO_ASSIGN(opened, job->impl.session(open));
    *session = opened.release();
    return {};
  });
}
