#include "muster/run.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/flags.h"
#include "muster/base/log.h"
#include "muster/base/thread_stacks.h"
#include "muster/base/tune.h"
#include "muster/job/job_context.h"
#include "muster/job/serve.h"

namespace muster {

using namespace detail;

namespace {

void warn_about_tuning(const JobContext& job) {
  if (!job.is_chief()) return;  // once a job
  for (const auto& problem :
       tuning_problems(CpuFeatures::detect(), loaded_blas(), job.config().environment)) {
    log_warning("{}", problem);
  }
}

// How long a task whose peer is gone waits to hear from the coordinator which task has failed: whoever
// notices first is not the one at fault.
constexpr auto kVerdict = std::chrono::seconds(2);

// A task that failed says why, with the stack for those who want it; one that was stopped says so in a line.
void report(JobContext& job, const std::exception& error) {
  const bool is_aborted = dynamic_cast<const Aborted*>(&error) != nullptr;
  if (is_aborted || dynamic_cast<const PeerLost*>(&error) != nullptr)
    job.wait_ended(Deadline::after(kVerdict));
  const std::string why = job.why_stopped();
  if (is_aborted && !why.empty()) return log_info("{}", why);
  const std::string message = text_without_stack(error);
  const bool has_stack = message.size() < std::strlen(error.what());
  log_error("{}{}", message, has_stack ? " (--log-level debug shows the stack)" : "");
  if (has_stack) log_debug("{}", error.what());
  job.abort(message);
}

// The fork of a task has none of its threads: it can neither take leave nor wait for anything.
[[noreturn]] void end_fork(const JobContext& job, const std::string& error) {
  fmt::print(stderr,
             "a fork of {} (pid {}) came back to muster::run, and is ended{}{}: it must end with _exit()\n",
             job.task().short_name(), getpid(), error.empty() ? "" : ": ", error);
  _exit(1);
}

void warn_about_flags(const JobContext& job) {
  const auto warn = [](const char* what_was_not_done, const std::vector<std::string>& flags) {
    if (!flags.empty())
      log_warning("the program {}: {} had no effect", what_was_not_done, fmt::join(flags, ", "));
  };
  if (!job.has_trained()) warn("made no Trainer and no ShardedEmbedding", job.config().given_for_training());
  if (job.has_trained() && !job.has_models())
    warn("made no Trainer, only embedding tables, which are updated as gradients come",
         job.config().given_for_trainers());
  // Training with parameter servers says it when it begins.
  if (!job.has_trained() && !job.has_communicated())
    warn("used no collectives", job.config().given_for_collectives());
}

int run_body(Job& job, const std::function<void(Job&)>& body, ThreadStacks& stacks) {
  JobContext& context = job.context();
  const std::string name = context.task().short_name();
  stacks.describe(name, [&context] { return context.waits().describe(); });
  // The stacks can still be asked for when the job is gone.
  const std::shared_ptr<void> forget(nullptr, [&](void*) { stacks.describe(name, nullptr); });
  try {
    warn_about_tuning(context);
    if (context.is_server() && context.servers_serve()) {
      serve_parameters(context);
    } else {
      body(job);
      if (context.is_of_a_fork()) end_fork(context, "");
      if (context.is_chief()) warn_about_flags(context);
      if (const auto why = context.failed_training(); !why.empty())
        log_warning("training failed, and the program has ended as if it had not: {}", why);
    }
    context.finish();
    return 0;
  } catch (const std::exception& error) {
    if (context.is_of_a_fork()) end_fork(context, text_without_stack(error));
    report(context, error);
  } catch (...) {
    if (context.is_of_a_fork()) end_fork(context, "");
    log_error("the program threw something that is no std::exception");
    context.abort("the program threw something that is no std::exception");
  }
  return 1;
}

}  // namespace

int run(CLI::App& app, int argc, char** argv, const std::function<void(Job&)>& body) {
  static std::atomic<bool> was_called{false};
  if (was_called.exchange(true)) {
    fmt::print(stderr,
               "{}: muster::run was called twice: a process is one task of a job and enters it once; call it "
               "once, and do all that the program does in its body\n",
               argv[0]);
    return 2;
  }
  Config config;
  try {
    config.add_flags(app);
  } catch (const CLI::OptionAlreadyAdded& error) {
    fmt::print(stderr, "{}: a flag of the program has the name of one of Muster's: {}\n", argv[0],
               error.what());
    return 2;
  }
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  setvbuf(stdout, nullptr, _IOLBF,
          0);  // a launcher reads our output through a pipe: it should see lines, not blocks
  // Before it enters the job and until it has left it: it may hang there, too.
  ThreadStacks stacks;
  std::unique_ptr<Job> job;
  try {
    config.read_environment(Environment::of_process());
    job = std::make_unique<Job>(std::move(config));
  } catch (const InvalidArgument& error) {
    fmt::print(stderr, "{}: {}\n", argv[0], error.what());
    return 2;
  } catch (const std::exception& error) {
    log_error("{}", text_without_stack(error));
    return 1;
  }
  return run_body(*job, body, stacks);
}

int run(int argc, char** argv, const std::function<void(Job&)>& body) {
  CLI::App app;
  return run(app, argc, argv, body);
}

}  // namespace muster
