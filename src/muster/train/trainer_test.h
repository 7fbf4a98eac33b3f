#pragma once

// What the tests of the Trainer share: workers as threads, a small model, and training as torch alone does
// it, for what should come out.

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/config.h"
#include "muster/base/error.h"
#include "muster/job/job_context.h"
#include "muster/job/serve.h"
#include "muster/net/reserved_port.h"
#include "muster/testing/thread_cluster.h"
#include "muster/trainer.h"

namespace muster::detail::testing {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

/// The workers are threads: torch needs no more of them. Every program that includes this has it.
inline const bool kOneThread = [] {
  at::set_num_threads(1);
  return true;
}();

struct Setup {
  int workers = 2;
  bool shared_memory = true;  ///< without it, each worker is a host of its own
  std::string precision = "fp32";
  int servers = 0;
  std::function<void(Config&)> configure;  ///< other settings
};

/// Two workers and a server.
inline Setup with_server(const std::string& strategy) {
  return {.workers = 2, .servers = 1, .configure = [=](Config& config) { config.strategy = strategy; }};
}

inline const std::vector<std::string> kServerStrategies = {"ps-sync", "ps-async", "ps-ssp", "ps-local"};

inline void PrintTo(const Setup& setup, std::ostream* out) {
  *out << setup.workers << " workers, shared memory " << (setup.shared_memory ? "on" : "off");
}

inline std::string setup_name(const ::testing::TestParamInfo<Setup>& info) {
  return fmt::format("{}Workers{}", info.param.workers, info.param.shared_memory ? "" : "Apart");
}

/// The addresses and settings of a job's tasks: workers first, then servers.
class TestCluster {
 public:
  explicit TestCluster(const Setup& setup) : setup_(setup), text_("worker=") {
    for (int i = 0; i < size(); ++i) {
      ports_.push_back(std::make_unique<ReservedPort>("127.0.0.1"));
      const char* before = i == setup.workers ? ";ps=" : i == 0 ? "" : ",";
      text_ += fmt::format("{}127.0.0.1:{}", before, ports_.back()->port());
    }
  }

  int size() const { return setup_.workers + setup_.servers; }

  Config config_of(int task) const {
    Config config;
    config.cluster = text_;
    config.task = task < setup_.workers ? fmt::format("/job:worker/task:{}", task)
                                        : fmt::format("/job:ps/task:{}", task - setup_.workers);
    config.shared_memory = setup_.shared_memory;
    config.precision = setup_.precision;
    config.bucket = "64K";
    config.log_level = LogLevel::kError;
    if (setup_.configure) setup_.configure(config);
    return config;
  }

 private:
  const Setup setup_;
  std::string text_;
  std::vector<std::unique_ptr<ReservedPort>> ports_;
};

/// One task of a job, from its beginning to its end. What it throws ends the job for the others, as
/// muster::run would.
inline void run_task(const Config& config, const std::function<void(Job&)>& body) {
  Job job(config);
  try {
    if (job.is_server()) {
      serve_parameters(job.context());
    } else {
      body(job);
    }
  } catch (const std::exception& error) {
    job.context().abort(error.what());
    throw;
  }
  job.context().finish();
}

/// Runs `body` on each worker of one job. Gives what each threw.
inline std::vector<std::string> errors_of(const Setup& setup, const std::function<void(Job&)>& body) {
  const TestCluster cluster(setup);
  return ThreadCluster(cluster.size(), std::chrono::seconds(110)).run([&](int task) {
    run_task(cluster.config_of(task), body);
  });
}

/// What is wrong with the arguments of what `body` calls.
inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

/// Runs it where nobody should throw; gives what `body` returned, by worker.
template <typename Body>
auto on_workers(const Setup& setup, const Body& body) {
  std::vector<decltype(body(std::declval<Job&>()))> results(static_cast<size_t>(setup.workers));
  const auto errors =
      errors_of(setup, [&](Job& job) { results[static_cast<size_t>(job.rank())] = body(job); });
  EXPECT_THAT(errors, ::testing::Each(""));
  return results;
}

/// How many updates of the parameters it takes until every worker has used this many batches: with ps-async,
/// for example, each batch of each worker is an update of its own.
inline int64_t steps_of(Job& job, int64_t batches_of_a_worker) {
  const Config& config = job.context().config();
  if (config.strategy == "ps-async" || (config.strategy == "ps-ssp" && config.staleness > 0))
    return batches_of_a_worker * job.size();
  if (config.strategy == "ps-sync" && config.replicas_to_aggregate > 0)
    return std::max<int64_t>(1, batches_of_a_worker * job.size() / config.replicas_to_aggregate);
  return batches_of_a_worker;
}

/// The same numbers for the same seed, in any thread.
inline Tensor random(at::IntArrayRef shape, uint64_t seed) {
  return torch::randn(shape, torch::make_generator<at::CPUGeneratorImpl>(seed));
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  Tensor forward(const Tensor& x) { return fc2(torch::tanh(fc1(x))); }
  torch::nn::Linear fc1{6, 8};
  torch::nn::Linear fc2{8, 3};
};
TORCH_MODULE(Net);

/// Rows [begin, end) of the data.
struct Batch {
  Tensor x;
  Tensor y;
  Batch(int64_t begin, int64_t end)
      : x(random({512, 6}, 1).slice(0, begin, end)), y(random({512, 3}, 2).slice(0, begin, end)) {}
  int64_t size() const { return x.size(0); }
};

inline Tensor loss_of(Net& net, const Batch& batch) {
  return torch::mse_loss(net(batch.x), batch.y);
}

/// All workers have the same batch: so their average is what one alone computes.
inline Tensor loss_at(Net& net, int step) {
  return loss_of(net, {8 * step, 8 * step + 8});
}

/// Gives all parameters values that depend on the seed only.
inline void fill(torch::nn::Module& module, uint64_t seed = 7) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) parameter.copy_(random(parameter.sizes(), seed++) * 0.3);
}

/// A model whose values count only on the chief.
inline Net net_of(const Job& job) {
  Net net;
  fill(*net, job.is_chief() ? 7 : 1000 + static_cast<uint64_t>(job.rank()));
  return net;
}

/// Copies of all parameters.
inline Tensors values_of(const torch::nn::Module& module) {
  Tensors values;
  for (const auto& parameter : module.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

inline void expect_near(const Tensors& found, const Tensors& expected, double tolerance = 2e-6) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].sizes(), expected[i].sizes());
    const auto difference = (found[i].to(torch::kFloat64) - expected[i].to(torch::kFloat64)).abs();
    EXPECT_LE(difference.max().item<double>(), tolerance) << "tensor " << i;
  }
}

/// Each worker's are the expected ones, and all workers' are the same in every bit.
inline void expect_all(const std::vector<Tensors>& workers, const Tensors& expected,
                       double tolerance = 2e-6) {
  for (const auto& found : workers) {
    expect_near(found, expected, tolerance);
    ASSERT_EQ(found.size(), workers.front().size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(workers.front()[i]));
  }
}

/// What torch's optimizer makes of the module in `steps` steps of loss(step); an undefined loss is no step.
template <typename Optimizer, typename Options>
Tensors plain(torch::nn::Module& module, const Options& options, int steps,
              const std::function<Tensor(int step)>& loss,
              const std::function<void(int step, Optimizer&)>& before_update = {}) {
  Tensors parameters;  // each once, also where it has two names
  for (const auto& parameter : module.parameters()) {
    const auto same = [&](const Tensor& other) { return other.is_same(parameter); };
    if (std::none_of(parameters.begin(), parameters.end(), same)) parameters.push_back(parameter);
  }
  Optimizer optimizer(parameters, options);
  for (int step = 0; step < steps; ++step) {
    for (auto& parameter : parameters) parameter.mutable_grad().reset();
    const Tensor value = loss(step);
    if (!value.defined()) continue;
    value.backward();
    if (before_update) before_update(step, optimizer);
    optimizer.step();
  }
  return values_of(module);
}

/// With SGD and a momentum of 0.9, as `sgd_rule()`.
inline Tensors plain_sgd(torch::nn::Module& module, int steps, const std::function<Tensor(int)>& loss,
                         const std::function<void(int, torch::optim::SGD&)>& before_update = {}) {
  return plain<torch::optim::SGD>(module, torch::optim::SGDOptions(0.1).momentum(0.9), steps, loss,
                                  before_update);
}
inline optim::Optimizer sgd_rule() {
  return optim::SGD({.lr = 0.1, .momentum = 0.9});
}

}  // namespace muster::detail::testing
