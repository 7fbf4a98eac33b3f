#include "muster/job/serve.h"

#include <algorithm>
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
#include "muster/base/start_thread.h"
#include "muster/base/text.h"
#include "muster/ps/server/parameter_server.h"
#include "muster/ps/session_protocol.h"
#include "muster/ps/table/table_service.h"

namespace muster::detail {
namespace {

constexpr auto kLook = std::chrono::milliseconds(250);

class Serving {
 public:
  explicit Serving(JobContext& job) : job_(job), tables_(job.endpoint(), job.id()) {
    job_.announce_server();
    job_.on_task_failed([this](const TaskInfo& task) {
      const auto names = job_.worker_names();
      const auto found = std::ranges::find(names, task.task.short_name());
      if (found != names.end()) report_failure({static_cast<int>(found - names.begin()), task.incarnation});
    });
  }

  ~Serving() { job_.on_task_failed({}); }

  void run() {
    std::atomic<bool> finished = false;
    std::exception_ptr error;
    std::thread waiting = start_thread([&] {
      try {
        job_.wait_for_workers();
      } catch (...) {
        error = std::current_exception();
      }
      finished = true;
    });
    try {
      for (int n = 1; !finished; ++n) {
        const auto spec = wait_for_spec(n, finished);
        if (spec) serve(n, *spec);
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
  struct Failure {
    int worker = 0;
    int incarnation = 0;
  };

  std::optional<ModelSpec> wait_for_spec(int n, const std::atomic<bool>& finished) {
    while (!finished) {
      end_job_if_failed();
      refuse_late_workers();
      end_models([this](int number, const ParameterServer& model) {
        return number < served_ && model.progress().over;
      });
      try {
        return ModelSpec::parse(job_.get_long(model_spec_key(n), kLook));
      } catch (const DeadlineExceeded&) {
        continue;
      } catch (const Aborted&) {
        break;  // whoever waits for the workers has it too
      }
    }
    return std::nullopt;
  }

  void serve(int n, const ModelSpec& spec) {
    served_ = n;
    const int index = job_.index();
    if (index == 0) say(n, Placement(spec.variables, spec.servers, spec.placement).to_string());
    auto made = std::make_unique<ParameterServer>(ParameterServer::Options{
        .endpoint = job_.endpoint(),
        .job_id = job_.id(),
        .model_id = std::to_string(n),
        .spec = spec,
        .server = index,
        .encrypted = job_.encrypted(),
        .heartbeat_timeout = job_.config().heartbeat_timeout,
        .join_timeout = job_.config().join_timeout,
        .waits = &job_.waits(),
        .worker_names = job_.worker_names(),
        .find_server = [this](int server, Deadline deadline) { return job_.find_server(server, deadline); }});
    const MutexLock lock(mutex_);
    for (const auto& failure : failures_) made->report_failure(failure.worker, failure.incarnation);
    models_[n] = std::move(made);
  }

  void report_failure(const Failure& failure) {
    const MutexLock lock(mutex_);
    failures_.push_back(failure);
    for (const auto& [n, model] : models_) model->report_failure(failure.worker, failure.incarnation);
  }

  void end_job_if_failed() {
    std::string error;
    {
      const MutexLock lock(mutex_);
      for (const auto& [n, model] : models_) {
        if (error.empty()) error = model->progress().error;
      }
    }
    if (!error.empty()) job_.abort(error);
  }

  // A worker that was started again begins with the program's first model, which the others may have ended. Its
  // connection stays open: it may still be about to say who it is, and must come to read this.
  void refuse_late_workers() {
    if (!has_failures()) return;
    for (const int n : ended_) {
      try {
        Connection connection = job_.endpoint()->accept(worker_channel_name(job_.id(), std::to_string(n)),
                                                        Deadline::after(std::chrono::seconds(0)), [] {});
        refuse(connection,
               fmt::format("the other workers have trained model {} of the program to its end, and its "
                           "parameters are gone: a worker that is started again can't train it",
                           n));
        refused_.push_back(std::move(connection));
      } catch (const Error&) {
        continue;  // nobody is there, or not any more
      }
    }
  }

  bool has_failures() {
    const MutexLock lock(mutex_);
    return !failures_.empty();
  }

  template <typename Which>
  void end_models(const Which& which) {
    for (auto& [n, model] : take_models(which)) {
      const auto progress = model->progress();
      model.reset();
      ended_.push_back(n);
      if (!progress.report.empty())
        say(n, fmt::format("{} step {}\n{}", progress.error.empty() ? "trained to" : "stopped in",
                           progress.step, progress.report));
    }
  }

  // They are let go of without the lock, since their threads are waited for.
  template <typename Which>
  Models take_models(const Which& which) {
    Models taken;
    const MutexLock lock(mutex_);
    for (auto model = models_.begin(); model != models_.end();) {
      const auto next = std::next(model);
      if (which(model->first, *model->second)) taken.insert(models_.extract(model));
      model = next;
    }
    return taken;
  }

  // A program with one model need not know that it has a number.
  void say(int n, const std::string& text) const {
    for (const auto& line : split(text, '\n')) {
      if (!line.empty()) log_info("{}{}", served_ > 1 ? fmt::format("model {}: ", n) : "", line);
    }
  }

  JobContext& job_;
  TableService tables_;
  int served_ = 0;          // models so far; of the thread that runs
  std::vector<int> ended_;  // by the number of their specs; of the same thread
  std::vector<Connection> refused_;
  Mutex mutex_;
  Models models_ MUSTER_GUARDED_BY(mutex_);  // by the number of their specs
  std::vector<Failure> failures_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace

std::string model_spec_key(int n) {
  return fmt::format("muster/model_spec/{}", n);
}

void serve_parameters(JobContext& job) {
  Serving(job).run();
}

}  // namespace muster::detail
