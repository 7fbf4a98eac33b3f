// One task of Muster for `muster bench ps`: muster_bench_ps DIR --variables 1 --bytes 4096, under `muster
// run`, as a worker or as a parameter server. Gradients lie in memory that a server of this host reads in
// place, and a pull copies the parameters.

#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/peers/ps_harness.h"
#include "muster/optim/rules.h"
#include "muster/ps/client.h"
#include "muster/ps/server.h"
#include "muster/train/run.h"

namespace {

using muster::Job;
using muster::ParameterClient;
using muster::ParameterServer;
using muster::bench::PsTask;

constexpr double kRate = 1;  // so that sums are exact

PsTask task_of(const Job& job, PsTask task) {
  task.workers = job.workers();
  task.servers = job.servers();
  task.rank = job.is_server() ? job.workers() + job.task().task.value_or(0) : job.worker();
  return task;
}

muster::ServerPlan plan_of(const PsTask& task, muster::Mode mode) {
  muster::ServerPlan plan = {.servers = task.servers,
                             .rule = muster::sgd({.lr = kRate})->to_string(),
                             .policy = {.workers = task.workers, .phases = {{0, mode}}}};
  for (size_t i = 0; i < task.variables; ++i)
    plan.variables.push_back({fmt::format("v{}", i), {static_cast<int64_t>(task.bytes / sizeof(float))}});
  return plan;
}

void run_server(Job& job, const PsTask& task, muster::Mode mode) {
  job.announce_server();
  const ParameterServer server({.endpoint = job.endpoint(),
                                .job_id = "bench",
                                .plan_id = "ps",
                                .plan = plan_of(task, mode),
                                .server = task.server(),
                                .find_server = [&](int other, muster::Deadline deadline) {
                                  return job.find_server(other, deadline);
                                }});
  muster::bench::serve_server(task);
  job.wait_for_workers();
}

class MusterWorker : public muster::bench::PsWorker {
 public:
  MusterWorker(Job& job, const PsTask& task, muster::Mode mode)
      : task_(task),
        is_sync_(mode == muster::Mode::kSync),
        client_({.endpoint = job.endpoint(),
                 .job_id = "bench",
                 .plan_id = "ps",
                 .plan = plan_of(task, mode),
                 .worker = task.rank,
                 .find_server = [&](int server,
                                    muster::Deadline deadline) { return job.find_server(server, deadline); },
                 .check = [] {}}),
        memory_(client_.allocate(task.count() * sizeof(float))),
        gradients_(static_cast<float*>(memory_.get()), task.count()),
        parameters_(task.count()) {
    muster::bench::write_start(parameters_);
    for (size_t i = 0; i < task.variables; ++i) places_.push_back(parameters_.data() + begin_of(i));
    if (job.is_chief()) client_.initialise(std::vector<const float*>(places_.begin(), places_.end()));
    reply_ = client_.join();
    pull(reply_.version);
  }

  ~MusterWorker() override { client_.leave(); }

  std::span<float> gradients() override { return gradients_; }

  void step() override {
    for (size_t i = 0; i < task_.variables; ++i) client_.deliver(i, gradients_.data() + begin_of(i));
    reply_ = client_.push(
        {.step = reply_.step, .version = version_, .lr = is_sync_ ? kRate * task_.workers : kRate});
    pull(reply_.version);
  }

  // Each push of each worker has become a version; or their average has, at a rate that makes it their sum.
  bool verify(int64_t steps) override {
    pull(is_sync_ ? steps : steps * task_.workers);
    return muster::bench::are_updated(parameters_, task_.workers, steps);
  }

 private:
  size_t begin_of(size_t variable) const { return variable * (task_.bytes / sizeof(float)); }
  void pull(int64_t at_least) { version_ = client_.pull(at_least, places_); }

  const PsTask task_;
  const bool is_sync_;
  ParameterClient client_;
  const std::shared_ptr<void> memory_;
  const std::span<float> gradients_;
  std::vector<float> parameters_;
  std::vector<float*> places_;
  muster::Reply reply_;
  int64_t version_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("One task of Muster for `muster bench ps`.");
  PsTask told;
  app.add_option("directory", told.directory, "where the driver's FIFOs are")->required();
  app.add_option("--variables", told.variables, "how many variables there are")->required();
  app.add_option("--bytes", told.bytes, "of one variable")->required();
  std::string mode = "ps-async";
  app.add_option("--mode", mode, "ps-async or ps-sync")->check(CLI::IsMember({"ps-async", "ps-sync"}));
  return muster::run(app, argc, argv, [&](Job& job) {
    const PsTask task = task_of(job, told);
    if (task.is_server()) return run_server(job, task, muster::parse_mode(mode));
    MusterWorker worker(job, task, muster::parse_mode(mode));
    muster::bench::serve_worker(worker, task);
  });
}
