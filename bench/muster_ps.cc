// One task of Muster for `muster bench ps`: muster_bench_ps DIR --variables 1 --bytes 4096, under `muster
// run`, as a worker or as a parameter server. Gradients lie in memory that a server of this host reads in
// place, and a pull copies the parameters.

#include <algorithm>
#include <vector>

#include "peers/ps_harness.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "muster/base/text.h"
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
  const auto servers = std::count_if(job.tasks().begin(), job.tasks().end(),
                                     [](const auto& each) { return each.task.job == "ps"; });
  task.workers = job.workers();
  task.servers = static_cast<int>(servers);
  task.rank = job.is_server() ? job.workers() + job.task().task.value_or(0) : job.worker();
  return task;
}

muster::ServerPlan plan_of(const PsTask& task) {
  muster::ServerPlan plan = {.servers = task.servers,
                             .rule = muster::sgd({.lr = kRate})->to_string(),
                             .policy = {.workers = task.workers}};
  for (size_t i = 0; i < task.variables; ++i)
    plan.variables.push_back({fmt::format("v{}", i), {static_cast<int64_t>(task.bytes / sizeof(float))}});
  return plan;
}

std::shared_ptr<muster::Endpoint> make_endpoint(const Job& job) {
  return std::make_shared<muster::Endpoint>(muster::Endpoint::Options{.secret = job.config().secret});
}

std::string key_of(int server) {
  return fmt::format("bench/server/{}", server);
}

muster::ServerAddress find_server(Job& job, int server) {
  const auto words = muster::split(job.get(key_of(server)), ' ');
  return {muster::Address::parse(words.at(0)), job.config().shared_memory ? words.at(1) : ""};
}

void run_server(Job& job, const PsTask& task) {
  const auto endpoint = make_endpoint(job);
  job.put(key_of(task.server()),
          fmt::format("{} {}", endpoint->address().to_string(), endpoint->local_name()));
  const ParameterServer server(
      {.endpoint = endpoint,
       .job_id = "bench",
       .plan_id = "ps",
       .plan = plan_of(task),
       .server = task.server(),
       .find_server = [&](int other, muster::Deadline) { return find_server(job, other); }});
  muster::bench::serve_server(task);
  job.wait_for_workers();
}

class MusterWorker : public muster::bench::PsWorker {
 public:
  MusterWorker(Job& job, const PsTask& task)
      : task_(task),
        client_({.endpoint = make_endpoint(job),
                 .job_id = "bench",
                 .plan_id = "ps",
                 .plan = plan_of(task),
                 .worker = task.rank,
                 .find_server = [&](int server, muster::Deadline) { return find_server(job, server); },
                 .check = [] {}}),
        memory_(client_.allocate(task.count() * sizeof(float))),
        gradients_(static_cast<float*>(memory_.get()), task.count()),
        parameters_(task.count()) {
    muster::bench::write_gradients(gradients_, task.rank);
    muster::bench::write_start(parameters_);
    for (size_t i = 0; i < task.variables; ++i) places_.push_back(parameters_.data() + begin_of(i));
    if (job.is_chief()) client_.initialise(std::vector<const float*>(places_.begin(), places_.end()));
    reply_ = client_.join();
    pull(reply_.version);
  }

  ~MusterWorker() override { client_.leave(); }

  void step() override {
    for (size_t i = 0; i < task_.variables; ++i) client_.deliver(i, gradients_.data() + begin_of(i));
    reply_ = client_.push({.step = reply_.step, .version = version_, .lr = kRate});
    pull(reply_.version);
  }

  // Each push of each worker has become a version.
  bool verify(int64_t steps) override {
    pull(steps * task_.workers);
    return muster::bench::are_updated(parameters_, task_.workers, steps);
  }

 private:
  size_t begin_of(size_t variable) const { return variable * (task_.bytes / sizeof(float)); }
  void pull(int64_t at_least) { version_ = client_.pull(at_least, places_); }

  const PsTask task_;
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
  return muster::run(app, argc, argv, [&](Job& job) {
    const PsTask task = task_of(job, told);
    if (task.is_server()) return run_server(job, task);
    MusterWorker worker(job, task);
    muster::bench::serve_worker(worker, task);
  });
}
