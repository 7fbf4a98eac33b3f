#include "muster/train/serve.h"

#include <atomic>
#include <map>
#include <memory>
#include <optional>
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
      if (task.task.job == "worker") lose({task.task.task.value_or(0), task.incarnation});
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
    end_models([](int, const ParameterServer&) { return true; });
    if (error) std::rethrow_exception(error);
  }

 private:
  using Models = std::map<int, std::unique_ptr<ParameterServer>>;
  struct Loss {
    int worker = 0;
    int incarnation = 0;
  };

  std::optional<ServerPlan> wait_for_plan(int n, const std::atomic<bool>& finished) {
    while (!finished) {
      end_job_if_failed();
      end_models([this](int number, const ParameterServer& model) {
        return number < served_ && model.progress().over;
      });
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
    served_ = n;
    const int index = job_.worker();
    if (index == 0) say(n, Placement(plan.variables, plan.servers, plan.placement).to_string());
    auto made = std::make_unique<ParameterServer>(ParameterServer::Options{
        .endpoint = job_.endpoint(),
        .job_id = job_.id(),
        .plan_id = std::to_string(n),
        .plan = plan,
        .server = index,
        .encrypted = job_.encrypted(),
        .find_server = [this](int server, Deadline deadline) { return job_.find_server(server, deadline); }});
    const MutexLock lock(mutex_);
    for (const auto& loss : losses_) made->lose(loss.worker, loss.incarnation);
    models_[n] = std::move(made);
  }

  void lose(const Loss& loss) {
    const MutexLock lock(mutex_);
    losses_.push_back(loss);
    for (const auto& [n, model] : models_) model->lose(loss.worker, loss.incarnation);
  }

  void end_job_if_failed() {
    std::string failure;
    {
      const MutexLock lock(mutex_);
      for (const auto& [n, model] : models_) {
        if (failure.empty()) failure = model->progress().failure;
      }
    }
    if (!failure.empty()) job_.abort(failure);
  }

  template <typename Which>
  void end_models(const Which& which) {
    Models ended;  // let go of without the lock: their threads are waited for
    const MutexLock lock(mutex_);
    for (auto model = models_.begin(); model != models_.end();) {
      const auto next = std::next(model);
      if (which(model->first, *model->second)) {
        const auto progress = model->second->progress();
        if (!progress.report.empty())
          say(model->first, fmt::format("trained to step {}\n{}", progress.step, progress.report));
        ended.insert(models_.extract(model));
      }
      model = next;
    }
  }

  // A program with one model need not know that it has a number.
  void say(int n, const std::string& text) const {
    for (const auto& line : split(text, '\n')) {
      if (!line.empty()) log_info("{}{}", served_ > 1 ? fmt::format("model {}: ", n) : "", line);
    }
  }

  Job& job_;
  TableService tables_;
  int served_ = 0;  // models so far; of the thread that runs
  Mutex mutex_;
  Models models_ MUSTER_GUARDED_BY(mutex_);  // by the number of their plans
  std::vector<Loss> losses_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace

std::string plan_key(int n) {
  return fmt::format("muster/plan/{}", n);
}

void serve_parameters(Job& job) {
  Serving(job).run();
}

}  // namespace muster
