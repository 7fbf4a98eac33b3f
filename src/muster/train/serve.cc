#include "muster/train/serve.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/mutex.h"
#include "muster/base/text.h"
#include "muster/ps/server.h"
#include "muster/ps/table_service.h"

namespace muster {
namespace {

constexpr auto kLook = std::chrono::milliseconds(250);

class Serving {
 public:
  explicit Serving(Job& job) : job_(job), tables_(job.endpoint(), job.id()) {
    job_.announce_server();
    job_.on_lost([this](const TaskInfo& task) {
      if (task.task.job != "worker") return;
      const MutexLock lock(mutex_);
      if (server_) server_->lose(task.task.task.value_or(0), task.incarnation);
    });
  }

  ~Serving() { job_.on_lost({}); }

  void run() {
    std::atomic<bool> finished = false;
    std::exception_ptr error;
    std::thread waiting([&, task = log_task()] {
      const ScopedLogTask scope(task);
      try {
        job_.wait_for_workers();
      } catch (...) {
        error = std::current_exception();
      }
      finished = true;
    });
    try {
      for (int n = 1; !finished; ++n) {
        const auto plan = wait_for_plan(n, finished);
        if (plan) serve(n, *plan);
      }
    } catch (const std::exception& failure) {
      job_.abort(failure.what());  // which ends the other thread as well
    }
    waiting.join();
    say_end();
    if (error) std::rethrow_exception(error);
  }

 private:
  std::optional<ServerPlan> wait_for_plan(int n, const std::atomic<bool>& finished) {
    while (!finished) {
      end_job_if_failed();
      try {
        return ServerPlan::parse(job_.get(plan_key(n), kLook));
      } catch (const DeadlineExceeded&) {
        continue;
      } catch (const Aborted&) {
        break;  // whoever waits for the workers has it too
      }
    }
    return std::nullopt;
  }

  void serve(int n, const ServerPlan& plan) {
    say_end();
    const int index = job_.worker();
    if (index == 0)
      for (const auto& line :
           split(Placement(plan.variables, plan.servers, plan.placement).to_string(), '\n')) {
        if (!line.empty()) log_info("{}", line);
      }
    auto made = std::make_unique<ParameterServer>(ParameterServer::Options{
        .endpoint = job_.endpoint(),
        .job_id = job_.id(),
        .plan_id = std::to_string(n),
        .plan = plan,
        .server = index,
        .encrypted = job_.encrypted(),
        .find_server = [this](int server, Deadline deadline) { return job_.find_server(server, deadline); }});
    std::unique_ptr<ParameterServer> before;
    const MutexLock lock(mutex_);
    before = std::exchange(server_, std::move(made));
  }

  void end_job_if_failed() {
    std::string failure;
    {
      const MutexLock lock(mutex_);
      if (server_) failure = server_->progress().failure;
    }
    if (!failure.empty()) job_.abort(failure);
  }

  void say_end() {
    const MutexLock lock(mutex_);
    if (!server_) return;
    const auto progress = server_->progress();
    if (progress.report.empty()) return;
    log_info("trained to step {}", progress.step);
    for (const auto& line : split(progress.report, '\n')) {
      if (!line.empty()) log_info("{}", line);
    }
  }

  Job& job_;
  TableService tables_;
  Mutex mutex_;
  std::unique_ptr<ParameterServer> server_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace

std::string plan_key(int n) {
  return fmt::format("muster/plan/{}", n);
}

void serve_parameters(Job& job) {
  Serving(job).run();
}

}  // namespace muster
