// The C ABI over zoexport::Job.
#include <filesystem>
#include <utility>

#include "bindings/c_support.h"
#include "job/conditions.h"
#include "job/job.h"
#include "session/decimal.h"
#include "session/examples/typed.h"
#include "session/storage/files.h"

using namespace zoexport::c;
using nlohmann::json;
using zoexport::Answer;
using zoexport::Failure;
using zoexport::Options;
using zoexport::Result;
using zoexport::Status;

struct zo_job {
  zoexport::Job impl;
};

namespace {

// An absolute path as the job stores it: the process that continues may have another working directory.
std::string absolute(const std::string& path) { return std::filesystem::absolute(path).lexically_normal().string(); }

Result<zoexport::JobRecord> read_request(const Options& given) {
  for (const char* const key : {"bundle", "data"}) {
    if (given.text(key).empty()) {
      return Failure{ZO_INVALID_ARGUMENT, std::string("option '") + key + "'", "nothing", "a path", "Pass one."};
    }
  }
  if (!given.has("steps")) {
    return Failure{ZO_INVALID_ARGUMENT, "option 'steps'", "nothing", "the number of steps in total", "Pass it."};
  }
  zoexport::JobRecord asked;
  asked.bundle = absolute(given.text("bundle"));
  asked.data = absolute(given.text("data"));
  asked.held_out = given.has("held_out") ? absolute(given.text("held_out")) : "";
  asked.steps = given.whole("steps");
  if (given.has("settings")) {
    asked.settings = given.value("settings");
  }
  asked.evaluate = given.flag("evaluate");
  asked.engine = given.text("engine");
  for (const char* const key : {"eval_every", "patience", "keep"}) {
    if (given.has(key)) {
      asked.validation[key] = given.value(key);
    }
  }
  if (asked.held_out.empty() && !asked.validation.empty()) {
    return Failure{ZO_INVALID_ARGUMENT, "option '" + asked.validation.begin().key() + "'", "no held_out",
                   "validation examples to evaluate on", "Pass held_out, or leave it out."};
  }
  return asked;
}

}  // namespace

zo_status zo_typed_write(const char* path, const char* examples, int32_t append, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_TRY(check_path(path, "path"));
    ZO_REQUIRE(examples);
    ZO_ASSIGN(list, zoexport::parse_options(examples, "examples"));
    if (!list.is_array()) {
      return Failure{ZO_INVALID_ARGUMENT, "examples", "no list", "a JSON list of examples", "Pass a list."};
    }
    std::string lines;
    if (append != 0 && zoexport::exists(path)) {
      ZO_ASSIGN(before, zoexport::read_file(path, ZO_DATA_ERROR));
      lines = before.empty() || before.back() == '\n' ? before : before + "\n";
    }
    for (size_t i = 0; i < list.size(); ++i) {
      ZO_ASSIGN(line, zoexport::typed_line(list[i], "example " + std::to_string(i + 1)));
      lines += line + "\n";
    }
    return zoexport::write_file(path, [&](int file) { return zoexport::write_all(file, lines.data(), lines.size()); });
  });
}

zo_status zo_job_open(const char* folder, const char* options, const zo_engine* engine, zo_job** job, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_TRY(check_path(folder, "folder"));
    ZO_REQUIRE(job);
    *job = nullptr;
    ZO_ASSIGN(given, Options::parse("open", options));
    std::string path = absolute(folder);
    if (path.size() > 1 && path.back() == '/') {
      path.pop_back();
    }
    ZO_TRY(zoexport::make_folder(path));
    *job = new zo_job{zoexport::Job(std::move(path), given.given(), engine)};
    return {};
  });
}

void zo_job_close(zo_job* job) { delete job; }

zo_status zo_job_start(zo_job* job, const char* request, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(job);
    ZO_ASSIGN(given, Options::parse("job", request));
    ZO_ASSIGN(asked, read_request(given));
    const std::string answer = given.text("answer");
    return job->impl.start(asked, answer == "continue"  ? Answer::kContinue
                                  : answer == "restart" ? Answer::kRestart
                                                        : Answer::kAsk);
  });
}

zo_status zo_job_run(zo_job* job, const char* limits, const zo_job_host* host, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(job);
    ZO_ASSIGN(given, Options::parse("limits", limits));
    ZO_ASSIGN(known, zoexport::read_limits(given));
    return job->impl.run({host == nullptr ? zo_job_host{} : *host, known});
  });
}

void zo_job_pause(zo_job* job, const char* reason) {
  if (job != nullptr) {
    job->impl.pause(zoexport::pause_from_text(reason == nullptr ? "" : reason));
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

zo_status zo_job_view(zo_job* job, char** view, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(job);
    ZO_REQUIRE(view);
    return give(job->impl.view(), view);
  });
}

zo_status zo_job_losses(zo_job* job, char** losses, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(job);
    ZO_REQUIRE(losses);
    json found = json::array();
    for (const zoexport::LossPoint& point : job->impl.losses()) {
      found.push_back({point.step, zoexport::json_number(point.loss)});
    }
    return give(found, losses);
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

zo_status zo_job_request(zo_job* job, char** request, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(job);
    ZO_REQUIRE(request);
    const auto record = job->impl.record();
    return give(record ? zoexport::encode_request(*record) : json(), request);
  });
}

zo_status zo_job_session(zo_job* job, zo_session** session, zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(job);
    ZO_REQUIRE(session);
    *session = nullptr;
    ZO_ASSIGN(opened, job->impl.session());
    *session = opened.release();
    return {};
  });
}
