#include "muster/sync_replicas.h"

#include <filesystem>
#include <future>
#include <limits>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/deadline.h"
#include "muster/error.h"
#include "muster/monitored_session.h"
#include "muster/net/reserved_port.h"
#include "muster/ops.h"
#include "muster/testing/message_of.h"

namespace muster {
namespace {

using detail::testing::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kServers = 2;
constexpr auto kSoon = std::chrono::seconds(60);

// Two parameter servers and some workers, all in this process.
class ReplicaCluster {
 public:
  explicit ReplicaCluster(int workers) {
    ClusterSpec::Jobs jobs;
    for (int i = 0; i < kServers + workers; ++i)
      jobs[i < kServers ? "ps" : "worker"].push_back(
          fmt::format("127.0.0.1:{}", ports_.emplace_back("127.0.0.1").port()));
    spec_.emplace(jobs);
    for (const auto& [job, tasks] : jobs) {
      for (size_t i = 0; i < tasks.size(); ++i) servers_[job].push_back(make(job, static_cast<int>(i)));
    }
  }

  const Server& worker(int task) const { return *servers_.at("worker")[static_cast<size_t>(task)]; }

  void restart_ps(int task) {
    auto& server = servers_.at("ps")[static_cast<size_t>(task)];
    server.reset();
    server = make("ps", task);
  }

 private:
  std::unique_ptr<Server> make(const std::string& job, int task) const {
    return std::make_unique<Server>(*spec_, job, task, Server::Options{.secret = "test"});
  }

  std::optional<ClusterSpec> spec_;
  std::vector<detail::ReservedPort> ports_;
  std::map<std::string, std::vector<std::unique_ptr<Server>>> servers_;
};

// Of two layers, in float64; `sync` of a worker's, or none for one process.
struct Regression {
  Regression(const optim::Optimizer& optimizer, const std::optional<SyncReplicas>& sync, bool is_local) {
    const auto device = graph.with_device(
        is_local
            ? DeviceFunction([](const Node&) { return std::string(); })
            : replica_device_setter({.ps_tasks = kServers,
                                     .worker_device = fmt::format("/job:worker/task:{}", sync->replica)}));
    const auto initial = [](int64_t rows, int64_t columns) {
      return torch::sin(torch::arange(rows * columns, at::kDouble)).reshape({rows, columns});
    };
    x = graph.placeholder("x", at::kDouble, {kBatch, 6});
    Output h = ops::linear(x, graph.variable("w0", initial(5, 6)),
                           graph.variable("b0", torch::ones({5}, at::kDouble)));
    h = ops::linear(ops::tanh(h), graph.variable("w1", initial(3, 5)));
    loss = ops::mean(ops::pow(h, 2));
    step = sync ? minimize_synchronously(graph, optimizer, loss, *sync)
                : count_step(graph, minimize(optimizer, loss));
    graph.variable("handed_in", torch::zeros({}), /*trainable=*/false);  // for a test
  }

  // The trained ones.
  std::vector<Output> variables() const {
    return {graph.output("w0"), graph.output("b0"), graph.output("w1")};
  }

  Graph graph;
  Output x;
  Output loss;
  Output step;
};

at::Tensor batch_of(int worker, int step) {
  return torch::cos(torch::arange(24, at::kDouble) * (worker + 1) + 7 * step).reshape({4, 6});
}

// The variables after so many steps of one process with the batches of all workers.
std::vector<at::Tensor> trained_by_one(const optim::Optimizer& optimizer, int workers, int steps) {
  Regression one(optimizer, std::nullopt, /*is_local=*/true);
  Session session("local", one.graph);
  session.run({}, {}, {one.graph.initializer()});
  for (int step = 0; step < steps; ++step) {
    std::vector<at::Tensor> batches;
    for (int worker = 0; worker < workers; ++worker) batches.push_back(batch_of(worker, step));
    session.run({one.step}, {{one.x, torch::cat(batches)}});
  }
  return session.run(one.variables());
}

// A worker as users write it.
struct Replica {
  Replica(const ReplicaCluster& cluster, const SyncReplicas& sync,
          const optim::Optimizer& optimizer = optim::SGD({.lr = 0.1}),
          std::chrono::milliseconds timeout = kSoon)
      : number(sync.replica),
        model(optimizer, sync, /*is_local=*/false),
        session(
            cluster.worker(sync.replica), model.graph,
            {.step = model.step, .stop_servers = false, .session = {.secret = "test", .timeout = timeout}}) {}

  // The global step afterwards.
  int64_t run(int step) {
    session.run({}, {{model.x, batch_of(number, step)}});
    return session.step();
  }

  std::vector<at::Tensor> variables() { return session.session().run(model.variables()); }

  const int number;
  Regression model;
  MonitoredSession session;
};

void expect_same(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-9, 1e-9)) << i << "\n" << found[i] << expected[i];
}

void expect_training_as_one(const optim::Optimizer& optimizer, int workers) {
  constexpr int kSteps = 20;
  const ReplicaCluster cluster(workers);
  std::vector<std::future<std::vector<at::Tensor>>> results;
  for (int worker = 0; worker < workers; ++worker) {
    results.push_back(std::async(std::launch::async, [&cluster, &optimizer, workers, worker] {
      Replica replica(cluster, {.total_num_replicas = workers, .replica = worker}, optimizer);
      for (int step = 0; step < kSteps; ++step) EXPECT_EQ(replica.run(step), step + 1);
      return replica.variables();
    }));
  }
  const auto expected = trained_by_one(optimizer, workers, kSteps);
  for (auto& result : results) expect_same(result.get(), expected);
}

TEST(SyncReplicas, TwoTrainAsOneProcessThatAveragesTheGradients) {
  expect_training_as_one(optim::SGD({.lr = 0.1, .momentum = 0.9}), 2);
  expect_training_as_one(optim::Adam({.lr = 0.01}), 2);
}

TEST(SyncReplicas, ThreeTrainAsOneProcessThatAveragesTheGradients) {
  expect_training_as_one(optim::SGD({.lr = 0.1, .momentum = 0.9}), 3);
  expect_training_as_one(optim::Adam({.lr = 0.01}), 3);
}

// The third has a token for step 0 when the others begin, and uses it when they are done. (The others need
// not take turns: whose gradients make an update does not matter.)
TEST(SyncReplicas, TheGradientOfASlowBackupWorkerIsDropped) {
  constexpr int64_t kSteps = 20;
  const ReplicaCluster cluster(3);
  const auto start = [&cluster](int worker) {
    return std::async(std::launch::async, [&cluster, worker] {
      return std::make_unique<Replica>(
          cluster, SyncReplicas{.replicas_to_aggregate = 2, .total_num_replicas = 3, .replica = worker});
    });
  };
  auto first = start(0);
  auto second = start(1);
  auto third = start(2);
  const std::unique_ptr<Replica> fast[] = {first.get(), second.get()};
  const std::unique_ptr<Replica> slow = third.get();
  std::vector<std::future<int>> runs;
  for (const auto& replica : fast) {
    runs.push_back(std::async(std::launch::async, [&replica] {
      int step = 0;
      while (replica->run(step++) < kSteps) {
      }
      return step;
    }));
  }
  int gradients = 0;
  for (auto& run : runs) gradients += run.get();
  EXPECT_GE(gradients, 2 * kSteps) << "the global step counts updates, of two gradients each";
  const auto before = slow->variables();
  EXPECT_EQ(slow->run(1000), kSteps) << "it computes for the current step from now on";
  expect_same(slow->variables(), before);
}

TEST(SyncReplicas, OneThatLeavesIsNotWaitedForAndOneThatComesBackTakesPart) {
  const ReplicaCluster cluster(2);
  const auto sync = [](int worker) { return SyncReplicas{.total_num_replicas = 2, .replica = worker}; };
  std::promise<void> is_back;
  auto stays = std::async(std::launch::async, [&] {
    Replica replica(cluster, sync(0));
    int step = 0;
    while (replica.run(step++) < 10) {
    }
    is_back.get_future().wait();
    while (replica.run(step++) < 20) {
    }
  });
  {
    Replica replica(cluster, sync(1));
    for (int step = 0; step < 3; ++step) EXPECT_EQ(replica.run(step), step + 1);
  }
  // Where the other one is alone, it goes on by itself.
  std::optional<Replica> back;
  const auto deadline = Deadline::after(kSoon);
  do {
    back.reset();
    back.emplace(cluster, sync(1));
  } while (back->session.step() < 10 && !deadline.expired());
  is_back.set_value();
  for (int step = 10; back->session.step() < 20; ++step) back->run(step);
  stays.get();
}

TEST(SyncReplicas, ARunThatTookTooLongHasHandedItsGradientIn) {
  const ReplicaCluster cluster(2);
  const auto sync = [](int worker) { return SyncReplicas{.total_num_replicas = 2, .replica = worker}; };
  const optim::SGD optimizer({.lr = 0.1});
  Replica impatient(cluster, sync(0), optimizer, std::chrono::seconds(2));
  EXPECT_THAT(message_of([&] { impatient.run(0); }), HasSubstr("a run took longer than 2.0 s"));
  EXPECT_THAT(message_of([&] { impatient.run(999); }), HasSubstr("a run took longer than 2.0 s"))
      << "it still waits, and this gradient is not used";
  Replica other(cluster, sync(1), optimizer);
  EXPECT_EQ(other.run(0), 1);
  EXPECT_EQ(impatient.run(1000), 1) << "it had no token, and has one now";
  expect_same(other.variables(), trained_by_one(optimizer, 2, 1));
  auto both = std::async(std::launch::async, [&] { return impatient.run(1); });
  EXPECT_EQ(other.run(1), 2);
  EXPECT_EQ(both.get(), 2);
  expect_same(other.variables(), trained_by_one(optimizer, 2, 2));
}

constexpr int kTaskOfGlobalStep = 1;  // and of w0; the others are on task 0

TEST(SyncReplicas, WhenTheTaskOfTheGlobalStepComesBackTheOtherVariablesAreTrainedOn) {
  ReplicaCluster cluster(1);
  Replica replica(cluster, {.total_num_replicas = 1});
  for (int step = 0; step < 5; ++step) EXPECT_EQ(replica.run(step), step + 1);
  const auto before = replica.variables();
  cluster.restart_ps(kTaskOfGlobalStep);
  EXPECT_EQ(replica.run(5), 1) << "the global step is initialised anew";
  const auto after = replica.variables();
  for (const size_t i : {1, 2}) EXPECT_FALSE(torch::equal(after[i], before[i])) << i;
}

// Counts the runs whose gradients have been handed in.
Output count_handed_in(Replica& replica) {
  Graph& graph = replica.model.graph;
  const auto after = graph.control_dependencies({graph.find("b0/carry_out"), graph.find("w1/carry_out")});
  return graph.assign_add(graph.output("handed_in"), graph.constant(1.0));
}

// The chief has done its work on the lost task, and waits for the other replica, which waits for the chief to
// give the lost variables values.
TEST(SyncReplicas, WhenATaskIsLostNobodyWaitsForOneThatWaitsForTheChief) {
  ReplicaCluster cluster(2);
  const auto sync = [](int worker) { return SyncReplicas{.total_num_replicas = 2, .replica = worker}; };
  const auto start = [&](int worker) {
    return std::async(std::launch::async,
                      [&, worker] { return std::make_unique<Replica>(cluster, sync(worker)); });
  };
  auto first = start(0);
  auto second = start(1);
  const auto chief = first.get();
  const auto other = second.get();
  const Output handed_in = count_handed_in(*chief);
  auto run = std::async(std::launch::async, [&] {
    chief->session.run({handed_in}, {{chief->model.x, batch_of(0, 0)}});
    return chief->session.step();
  });
  Session looks(cluster.worker(1).target(), other->model.graph, {.secret = "test"});
  const auto deadline = Deadline::after(kSoon);
  while (looks.run({other->model.graph.output("handed_in")}).front().item<float>() < 1 && !deadline.expired())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  cluster.restart_ps(1 - kTaskOfGlobalStep);
  EXPECT_EQ(other->run(0), 1) << "with the gradient that the chief had handed in";
  EXPECT_EQ(other->run(1), 2);
  EXPECT_EQ(run.get(), 2) << "the chief made its run once more";
}

TEST(SyncReplicas, OneAloneMayComputeSeveralGradientsForAStep) {
  const ReplicaCluster cluster(1);
  Replica replica(cluster, {.replicas_to_aggregate = 2, .total_num_replicas = 1});
  Regression one(optim::SGD({.lr = 0.1}), std::nullopt, /*is_local=*/true);
  Session session("local", one.graph);
  session.run({}, {}, {one.graph.initializer()});
  for (int step = 0; step < 5; ++step) {
    EXPECT_EQ(replica.run(2 * step), step);
    EXPECT_EQ(replica.run(2 * step + 1), step + 1);
    session.run({one.step}, {{one.x, torch::cat({batch_of(0, 2 * step), batch_of(0, 2 * step + 1)})}});
  }
  expect_same(replica.variables(), session.run(one.variables()));
}

TEST(SyncReplicas, OfTwoClientsWithTheSameNumberTheLaterCounts) {
  const ReplicaCluster cluster(1);
  const SyncReplicas sync{.total_num_replicas = 1};
  Replica first(cluster, sync);
  EXPECT_EQ(first.run(0), 1);
  Replica second(cluster, sync);
  EXPECT_EQ(second.run(0), 2);
  EXPECT_THAT(message_of([&] { first.run(1); }), HasSubstr("another client says that it is replica 0, too"));
  EXPECT_EQ(second.run(1), 3);
}

TEST(SyncReplicas, AGradientThatIsNotFiniteIsRefusedWithItsVariable) {
  const ReplicaCluster cluster(1);
  Replica replica(cluster, {.total_num_replicas = 1});
  const at::Tensor bad = torch::full({4, 6}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  EXPECT_THAT(message_of([&] {
                replica.session.run({}, {{replica.model.x, bad}});
              }),
              AllOf(HasSubstr("the gradient of the variable '"), HasSubstr("is not finite")));
  for (int step = 0; step < 3; ++step) EXPECT_EQ(replica.run(step), step + 1);
  expect_same(replica.variables(), trained_by_one(optim::SGD({.lr = 0.1}), 1, 3));
}

TEST(SyncReplicas, OneAloneTrainsInThisProcessAlsoFromAFile) {
  const optim::SGD optimizer({.lr = 0.1, .momentum = 0.9});
  const std::string file =
      (std::filesystem::path(::testing::TempDir()) / "muster_sync_replicas_test.pb").string();
  {
    Regression made(optimizer, SyncReplicas(), /*is_local=*/true);
    static_cast<void>(made.graph.initializer());
    made.graph.save(file);
  }
  const Graph graph = Graph::load(file);
  std::filesystem::remove(file);
  Session session("local", graph);
  session.run({}, {}, {graph.find("initializer")});
  session.run({}, {}, {graph.find("sync_replicas/enter")});
  const Output step = graph.output("sync_replicas/step");
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(session.run({step}, {{graph.output("x"), batch_of(0, i)}}).front().item<int64_t>(), i + 1);
  expect_same(session.run({graph.output("w0"), graph.output("b0"), graph.output("w1")}),
              trained_by_one(optimizer, 1, 5));
}

TEST(SyncReplicas, WhatMakesNoSenseIsRefused) {
  Graph graph;
  const Output w = graph.variable("w", torch::ones({2}));
  const Output half = graph.variable("half", torch::ones({2}, at::kHalf));
  const optim::SGD optimizer({.lr = 0.1});
  const auto minimize = [&](const Output& loss, const SyncReplicas& sync) {
    return message_of([&] { minimize_synchronously(graph, optimizer, loss, sync); });
  };
  const Output loss = ops::sum(w);
  EXPECT_THAT(minimize(loss, {.total_num_replicas = 0}), HasSubstr("the total number of replicas is 0"));
  EXPECT_THAT(minimize(loss, {.replicas_to_aggregate = -1, .total_num_replicas = 2}),
              HasSubstr("-1 replicas are to be aggregated"));
  EXPECT_THAT(minimize(loss, {.total_num_replicas = 2, .replica = 2}),
              HasSubstr("this is replica 2; expected 0 to 1"));
  EXPECT_THAT(minimize(ops::sum(half), {}), HasSubstr("the variable 'half' is of type Half"));
  EXPECT_THAT(minimize(graph.constant(1.0), {}), HasSubstr("depends on no trainable variable"));
  EXPECT_THAT(minimize({}, {}), HasSubstr("the loss is undefined"));
}

}  // namespace
}  // namespace muster
