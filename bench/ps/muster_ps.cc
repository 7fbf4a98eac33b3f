// One task of Muster for `muster bench ps`: muster_bench_ps DIR --variables 1 --bytes 4096, under `muster
// run`, as a worker or as a parameter server. Gradients lie in memory that a server of this host reads in
// place, and a pull copies the parameters.

#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/peers/ps_harness.h"
#include "muster/job/job_context.h"
#include "muster/optim/rules.h"
#include "muster/ps/client/parameter_client.h"
#include "muster/ps/server/parameter_server.h"
#include "muster/run.h"

namespace {

using muster::Job;
using muster::detail::JobContext;
using muster::detail::ParameterClient;
using muster::detail::ParameterServer;
using muster::detail::bench::PsTask;

constexpr double kRate = 1;  // so that sums are exact

PsTask task_of(const Job& job, PsTask task) {
  task.workers = job.size();
  task.servers = job.servers();
  task.rank = job.is_server() ? job.size() + job.index() : job.rank();
  return task;
}

muster::detail::ModelSpec spec_of(const PsTask& task, muster::detail::Mode mode) {
  muster::detail::ModelSpec spec = {.servers = task.servers,
                                    .rule = muster::detail::sgd({.lr = kRate})->to_string(),
                                    .policy = {.workers = task.workers, .phases = {{0, mode}}}};
  for (size_t i = 0; i < task.variables; ++i)
    spec.variables.push_back({fmt::format("v{}", i), {static_cast<int64_t>(task.bytes / sizeof(float))}});
  return spec;
}

void run_server(JobContext& job, const PsTask& task, muster::detail::Mode mode) {
  job.announce_server();
  const ParameterServer server({.endpoint = job.endpoint(),
                                .job_id = "bench",
                                .model_id = "ps",
                                .spec = spec_of(task, mode),
                                .server = task.server(),
                                .find_server = [&](int other, muster::Deadline deadline) {
                                  return job.find_server(other, deadline);
                                }});
  muster::detail::bench::serve_server(task);
  job.wait_for_workers();
}

class MusterWorker : public muster::detail::bench::PsWorker {
 public:
  MusterWorker(JobContext& job, const PsTask& task, muster::detail::Mode mode)
      : task_(task),
        is_sync_(mode == muster::detail::Mode::kSync),
        client_({.endpoint = job.endpoint(),
                 .job_id = "bench",
                 .model_id = "ps",
                 .spec = spec_of(task, mode),
                 .worker = task.rank,
                 .find_server = [&](int server,
                                    muster::Deadline deadline) { return job.find_server(server, deadline); },
                 .check = [] {}}),
        memory_(client_.allocate(task.count() * sizeof(float))),
        gradients_(static_cast<float*>(memory_.get()), task.count()),
        parameters_(task.count()) {
    muster::detail::bench::write_start(parameters_);
    for (size_t i = 0; i < task.variables; ++i) variables_.push_back(parameters_.data() + begin_of(i));
    if (job.is_chief()) client_.initialise(std::vector<const void*>(variables_.begin(), variables_.end()));
    reply_ = client_.enter();
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
    return muster::detail::bench::are_updated(parameters_, task_.workers, steps);
  }

 private:
  size_t begin_of(size_t variable) const { return variable * (task_.bytes / sizeof(float)); }
  void pull(int64_t at_least) { version_ = client_.pull(at_least, variables_); }

  const PsTask task_;
  const bool is_sync_;
  ParameterClient client_;
  const std::shared_ptr<void> memory_;
  const std::span<float> gradients_;
  std::vector<float> parameters_;
  std::vector<void*> variables_;
  muster::detail::Reply reply_;
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
    if (task.is_server()) return run_server(job.context(), task, muster::detail::parse_mode(mode));
    MusterWorker worker(job.context(), task, muster::detail::parse_mode(mode));
    muster::detail::bench::serve_worker(worker, task);
  });
}
