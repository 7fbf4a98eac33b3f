#include "muster/monitored_session.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/log.h"
#include "muster/error.h"
#include "muster/net/reserved_port.h"
#include "muster/ops.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

// A parameter server and two workers, all in this process.
class TrainingCluster {
 public:
  TrainingCluster() {
    for (int i = 0; i < 3; ++i) ports_.emplace_back("127.0.0.1");
    const auto address = [this](size_t i) { return fmt::format("127.0.0.1:{}", ports_[i].port()); };
    spec_.emplace(ClusterSpec::Jobs{{"ps", {address(0)}}, {"worker", {address(1), address(2)}}});
    start_ps();
    for (int i = 0; i < 2; ++i)
      workers.push_back(std::make_unique<Server>(*spec_, "worker", i, Server::Options{.secret = "test"}));
  }

  void start_ps() { ps = std::make_unique<Server>(*spec_, "ps", 0, Server::Options{.secret = "test"}); }

  std::unique_ptr<Server> ps;
  std::vector<std::unique_ptr<Server>> workers;

 private:
  std::vector<detail::ReservedPort> ports_;
  std::optional<ClusterSpec> spec_;
};

// w grows by one in each step.
struct GrowingByOne {
  explicit GrowingByOne(int worker) {
    const auto device = graph.with_device(
        replica_device_setter({.worker_device = fmt::format("/job:worker/task:{}", worker)}));
    w = graph.variable("w", torch::zeros({2}));
    const Node more = graph.assign_add(w, graph.constant(torch::ones({2})));
    step = count_step(graph, more);
  }

  Graph graph;
  Output w;
  Output step;
};

TEST(MonitoredSession, TheChiefInitialisesAllTrainToTheLastStepAndTheServersEnd) {
  TrainingCluster cluster;
  std::atomic<int> begun{0};
  std::atomic<int> runs{0};
  std::atomic<int> ended{0};
  std::vector<std::thread> threads;
  for (const int worker : {1, 0}) {
    threads.emplace_back([&, worker] {
      GrowingByOne counting(worker);
      MonitoredSession session(
          *cluster.workers[static_cast<size_t>(worker)], counting.graph,
          {.step = counting.step,
           .last_step = 40,
           .hooks = {{.begin = [&](Session&) { ++begun; },
                      .after_run = [&](int64_t, const std::vector<at::Tensor>&) { ++runs; },
                      .end = [&](Session&, int64_t) { ++ended; }}},
           .session = {.secret = "test"}});
      EXPECT_EQ(session.is_chief(), worker == 0);
      while (!session.should_stop()) session.run();
      EXPECT_GE(session.step(), 40);
      EXPECT_GE(session.session().run({counting.w}).front()[0].item<float>(), 40);
    });
  }
  cluster.ps->join();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(begun, 2);
  EXPECT_EQ(ended, 2);
  EXPECT_GE(runs, 40);
  EXPECT_LE(runs, 41) << "each may take one that was begun before it heard of the last";
}

TEST(MonitoredSession, AServerThatComesBackIsWaitedForAndItsVariablesRestoredOrNamed) {
  TrainingCluster cluster;
  std::mutex mutex;
  std::string log;
  detail::set_log_sink([&](std::string_view line) {
    const std::lock_guard lock(mutex);
    log += line;
  });
  for (const bool restores : {false, true}) {
    GrowingByOne counting(0);
    const Output saved = counting.graph.constant(torch::full({2}, 100.0));
    const Node restore = [&] {
      const auto device = counting.graph.with_device("/job:ps/task:0");
      return Node(counting.graph.assign(counting.w, saved));
    }();
    MonitoredSession::Options options{
        .step = counting.step, .stop_servers = false, .session = {.secret = "test"}};
    options.session.container = restores ? "restored" : "";
    if (restores)
      options.restore = [&](Session& session) {
        session.run({}, {}, {restore});
        return true;
      };
    MonitoredSession session(*cluster.workers[0], counting.graph, options);
    session.run();
    std::thread back([&] {
      cluster.ps.reset();
      cluster.start_ps();
    });
    back.join();
    session.run();
    EXPECT_EQ(session.session().run({counting.w}).front()[0].item<float>(), restores ? 101 : 1);
    const std::lock_guard lock(mutex);
    if (restores) {
      EXPECT_THAT(log, ::testing::Not(HasSubstr("'w', "))) << "it came from the checkpoint";
    } else {
      EXPECT_THAT(log, HasSubstr("'w', 'global_step', 'muster/ended_workers' are initialised anew"));
    }
    log.clear();
  }
  detail::set_log_sink({});
}

TEST(MonitoredSession, VariablesThatEachWorkerWouldHaveForItselfAreRefused) {
  TrainingCluster cluster;
  Graph graph;
  const Output w = graph.variable("w", torch::zeros({2}));
  const Output step = count_step(graph, graph.assign_add(w, graph.constant(torch::ones({2}))));
  try {
    MonitoredSession(*cluster.workers[0], graph, {.step = step, .session = {.secret = "test"}});
    ADD_FAILURE() << "it was taken";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("the variable 'w' (made at monitored_session_test.cc"));
  }
}

}  // namespace
}  // namespace muster
