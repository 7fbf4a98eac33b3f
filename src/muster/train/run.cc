#include "muster/train/run.h"

#include <cstdio>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/flags.h"
#include "muster/base/log.h"
#include "muster/base/tune.h"
#include "muster/train/serve.h"

namespace muster {
namespace {

void warn_about_tuning(const Job& job) {
  if (!job.is_chief()) return;  // once a job
  for (const auto& problem :
       tuning_problems(CpuFeatures::detect(), loaded_blas(), job.config().environment)) {
    log_warning("{}", problem);
  }
}

int run_body(Job& job, const std::function<void(Job&)>& body) {
  try {
    warn_about_tuning(job);
    if (job.is_server() && job.config().strategy.starts_with("ps-")) {
      serve_parameters(job);
    } else {
      body(job);
    }
    job.finish();
    return 0;
  } catch (const Aborted& error) {
    log_error("{}", error.what());  // somebody else's reason: everyone has it already
  } catch (const std::exception& error) {
    log_error("{}", error.what());
    job.abort(error.what());
  }
  return 1;
}

}  // namespace

int run(CLI::App& app, int argc, char** argv, const std::function<void(Job&)>& body) {
  Config config;
  config.add_flags(app);
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  setvbuf(stdout, nullptr, _IOLBF,
          0);  // a launcher reads our output through a pipe: it should see lines, not blocks
  std::unique_ptr<Job> job;
  try {
    config.read_environment(Environment::of_process());
    job = std::make_unique<Job>(std::move(config));
  } catch (const InvalidArgument& error) {
    fmt::print(stderr, "{}: {}\n", argv[0], error.what());
    return 2;
  } catch (const std::exception& error) {
    log_error("{}", error.what());
    return 1;
  }
  return run_body(*job, body);
}

int run(int argc, char** argv, const std::function<void(Job&)>& body) {
  CLI::App app;
  return run(app, argc, argv, body);
}

}  // namespace muster
