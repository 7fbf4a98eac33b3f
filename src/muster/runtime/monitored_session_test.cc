#include "muster/monitored_session.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/log.h"
#include "muster/deadline.h"
#include "muster/error.h"
#include "muster/net/reserved_port.h"
#include "muster/ops.h"
#include "muster/sync_replicas.h"

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
    MonitoredSession::Options options{
        .step = counting.step, .stop_servers = false, .session = {.secret = "test"}};
    options.session.container = restores ? "restored" : "";
    if (restores)
      options.restore = [] {
        return ValuesByName{{"w", torch::full({2}, 100.0)}, {"other", torch::zeros({1})}};
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
      EXPECT_THAT(log, HasSubstr("values for 'other', which the graph does not have"));
    } else {
      EXPECT_THAT(log, HasSubstr("'w', 'global_step' are initialised anew: they were lost"));
    }
    log.clear();
  }
  detail::set_log_sink({});
}

// The step's callable is made anew for the new server, and finds no values; looking for them fails once more,
// since that callable is an old one.
TEST(MonitoredSession, ALossThatIsSeenWhileLookingForValuesIsWaitedForToo) {
  TrainingCluster cluster;
  GrowingByOne counting(0);
  MonitoredSession session(*cluster.workers[0], counting.graph,
                           {.step = counting.step, .stop_servers = false, .session = {.secret = "test"}});
  session.run();
  cluster.ps.reset();
  cluster.start_ps();
  session.run({counting.w});
  EXPECT_EQ(session.step(), 1);
}

TEST(MonitoredSession, AServerThatIsLostAgainWhileAllIsPreparedIsWaitedForAgain) {
  TrainingCluster cluster;
  GrowingByOne counting(0);
  std::optional<ValuesByName> saved;
  int begun = 0;
  int restored = 0;
  const auto restart = [&cluster] {
    cluster.ps.reset();
    cluster.start_ps();
  };
  MonitoredSession session(*cluster.workers[0], counting.graph,
                           {.step = counting.step,
                            .hooks = {{.begin =
                                           [&](Session&) {
                                             if (++begun == 2) restart();
                                           }}},
                            .restore =
                                [&] {
                                  if (++restored == 2) restart();
                                  return saved;
                                },
                            .stop_servers = false,
                            .session = {.secret = "test"}});
  for (int i = 0; i < 5; ++i) session.run();
  const auto values = session.evaluate({counting.w, global_step(counting.graph)});
  saved = {{"w", values[0]}, {"global_step", values[1]}};
  session.run();
  restart();
  session.run();
  EXPECT_EQ(session.step(), 6) << "5 were saved";
  EXPECT_EQ(session.session().run({counting.w}).front()[0].item<float>(), 6);
  EXPECT_GE(begun, 3);
  EXPECT_GE(restored, 4) << "once there was nothing to restore, and twice it was lost again";
}

// The chief has given the lost variables values again before this worker looks.
TEST(MonitoredSession, ALossIsSeenThoughTheChiefWasFaster) {
  TrainingCluster cluster;
  GrowingByOne of_chief(0);
  MonitoredSession chief(*cluster.workers[0], of_chief.graph,
                         {.step = of_chief.step, .stop_servers = false, .session = {.secret = "test"}});
  GrowingByOne counting(1);
  Output late;  // a variable that no chief knows
  Node give_late;
  MonitoredSession session(*cluster.workers[1], counting.graph,
                           {.step = counting.step,
                            .hooks = {{.begin =
                                           [&](Session& begun) {
                                             if (give_late.defined()) begun.run({}, {}, {give_late});
                                           }}},
                            .session = {.secret = "test"}});
  session.run();
  {
    const auto device = counting.graph.with_device("/job:ps/task:0");
    late = counting.graph.variable("late", torch::zeros({2}));
    give_late = counting.graph.assign(late, counting.w);
  }
  cluster.ps.reset();
  cluster.start_ps();
  chief.run();
  session.run({late});
  EXPECT_EQ(session.step(), 2);
}

TEST(MonitoredSession, PatienceWithATaskThatDoesNotComeBackEnds) {
  TrainingCluster cluster;
  GrowingByOne counting(0);
  MonitoredSession session(*cluster.workers[0], counting.graph,
                           {.step = counting.step,
                            .patience = std::chrono::milliseconds(300),
                            .stop_servers = false,
                            .session = {.secret = "test"}});
  session.run();
  cluster.ps.reset();
  EXPECT_THROW(session.run(), PeerLost);
  cluster.start_ps();
  session.run();
}

// Two clients, and a server that is started again twice while they train; w is the number of updates.
void expect_training_to_go_on(bool is_synchronous) {
  constexpr int64_t kLastStep = 300;
  TrainingCluster cluster;
  std::atomic<int64_t> seen{0};
  std::atomic<int> restored{0};
  std::vector<std::thread> threads;
  for (const int worker : {0, 1}) {
    threads.emplace_back([&, worker] {
      Graph graph;
      Output w;
      Output step;
      {
        const auto device = graph.with_device(
            replica_device_setter({.worker_device = fmt::format("/job:worker/task:{}", worker)}));
        w = graph.variable("w", torch::zeros({2}));
        const Output loss = ops::neg(ops::sum(w));
        const optim::SGD optimizer({.lr = 1});
        step = is_synchronous ? minimize_synchronously(graph, optimizer, loss,
                                                       {.total_num_replicas = 2, .replica = worker})
                              : count_step(graph, minimize(optimizer, loss));
      }
      std::optional<ValuesByName> saved;
      MonitoredSession session(
          *cluster.workers[static_cast<size_t>(worker)], graph,
          {.step = step,
           .last_step = kLastStep,
           .chief_hooks = {save_variables(graph, [&](int64_t, const ValuesByName& values) { saved = values; },
                                          {.steps = 10})},
           .restore =
               [&] {
                 restored += saved ? 1 : 0;
                 return saved;
               },
           .session = {.secret = "test"}});
      while (!session.should_stop()) {
        session.run();
        if (worker == 0) seen = session.step();
      }
      if (worker != 0) return;
      const auto last = session.evaluate({w, global_step(graph)});
      // The other's run may be under way, also when a snapshot is taken.
      EXPECT_NEAR(last[0][0].item<double>(), last[1].item<double>(), is_synchronous ? 0 : 4);
    });
  }
  const auto deadline = Deadline::after(std::chrono::seconds(60));
  for (const int64_t step : {50, 150}) {
    while (seen < step && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    cluster.ps.reset();
    cluster.start_ps();
  }
  cluster.ps->join();
  for (auto& thread : threads) thread.join();
  EXPECT_GE(restored, 2);
}

TEST(MonitoredSession, AsynchronousClientsGoOnWithWhatWasSavedWhenAServerComesBack) {
  expect_training_to_go_on(/*is_synchronous=*/false);
}

TEST(MonitoredSession, SynchronousClientsGoOnWithWhatWasSavedWhenAServerComesBack) {
  expect_training_to_go_on(/*is_synchronous=*/true);
}

// The server is lost within the hook, and while the chief evaluates.
TEST(MonitoredSession, ALossInAHookOrAnEvaluationIsWaitedForToo) {
  TrainingCluster cluster;
  GrowingByOne counting(0);
  int called = 0;
  std::optional<Session*> session_of_hook;
  const auto restart = [&cluster] {
    cluster.ps.reset();
    cluster.start_ps();
  };
  const SessionHook looks{.begin = [&](Session& session) { session_of_hook = &session; },
                          .after_run =
                              [&](int64_t, const std::vector<at::Tensor>&) {
                                if (++called == 2) restart();
                                (*session_of_hook)->run({counting.w});
                              }};
  MonitoredSession session(
      *cluster.workers[0], counting.graph,
      {.step = counting.step, .hooks = {looks}, .stop_servers = false, .session = {.secret = "test"}});
  session.run();
  session.run();
  EXPECT_EQ(session.step(), 0) << "initialised anew";
  session.run();
  EXPECT_EQ(called, 3);
  restart();
  EXPECT_EQ(session.evaluate({counting.w}).front()[0].item<float>(), 0);
  session.run();
  EXPECT_EQ(session.step(), 1);
}

TEST(MonitoredSession, ServersAreStoppedThoughAHookFailsAtTheEnd) {
  TrainingCluster cluster;
  GrowingByOne counting(0);
  const SessionHook fails{.end = [](Session&, int64_t) { throw std::runtime_error("the disk is full"); }};
  MonitoredSession session(*cluster.workers[0], counting.graph,
                           {.step = counting.step,
                            .chief_hooks = {fails},
                            .patience = std::chrono::seconds(1),  // with the other worker
                            .session = {.secret = "test"}});
  session.run();
  EXPECT_THROW(session.close(), std::runtime_error);
  cluster.ps->join();
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
