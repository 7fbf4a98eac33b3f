// Servers and clients that stand still or are cut off: they hold nobody beyond his deadline.

#include <signal.h>

#include <chrono>
#include <future>
#include <thread>

#include "server_processes.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/ops.h"
#include "muster/queue.h"
#include "muster/server.h"
#include "muster/session.h"
#include "muster/testing/hosts.h"
#include "muster/testing/message_of.h"
#include "muster/testing/process_cluster.h"
#include "muster/testing/test_main.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::ServerProcesses;
using testing::soon;

constexpr const char* kOther = "/job:task/task:1";
constexpr int64_t kLarge = 16 << 20;  // floats: more than any socket takes

TEST(SessionFaults, AServerThatStandsStillHoldsNobodyWhoFeedsIt) {
  ServerProcesses servers(2, {.environment = {{"MUSTER_SHARED_MEMORY", "off"}}});
  Graph graph;
  Output x, sum;
  {
    const auto other = graph.with_device(kOther);
    x = graph.placeholder("x", at::kFloat, {kBatch});
    sum = ops::sum(x);
  }
  Session session(servers.target(0), graph, {.secret = "test", .timeout = 2s});
  const torch::Tensor large = torch::ones({kLarge});
  EXPECT_EQ(session.run({sum}, {{x, large}}).front().item<float>(), kLarge);
  servers.cluster.signal(servers.process(1), SIGSTOP);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_THAT(message_of([&] {
                session.run({sum}, {{x, large}});
              }),
              AllOf(HasSubstr("a run took longer than 2.0 s"), HasSubstr(kOther)));
  EXPECT_LT(std::chrono::steady_clock::now() - before, 15s);
  servers.cluster.signal(servers.process(1), SIGCONT);
  EXPECT_EQ(session.run({sum}, {{x, torch::ones({5})}}).front().item<float>(), 5);
}

// What it has not seen before has to be made ready on the server that stands still. What is ready elsewhere
// runs on meanwhile.
TEST(SessionFaults, AServerThatStandsStillHoldsNobodyWhoAsksForSomethingNew) {
  ServerProcesses servers(2);
  Graph graph;
  const Output here = graph.constant(torch::ones({3}), "here");
  Output there;
  {
    const auto other = graph.with_device(kOther);
    there = graph.constant(torch::ones({3}), "there");
  }
  Session session(servers.target(0), graph, {.secret = "test", .timeout = 3s});
  session.run({here});
  servers.cluster.signal(servers.process(1), SIGSTOP);
  const auto before = std::chrono::steady_clock::now();
  auto asks = std::async(std::launch::async, [&] { return message_of([&] { session.run({there}); }); });
  while (asks.wait_for(0s) == std::future_status::timeout) {
    const auto begun = std::chrono::steady_clock::now();
    session.run({here});
    ASSERT_LT(std::chrono::steady_clock::now() - begun, 2s);
  }
  EXPECT_THAT(asks.get(), HasSubstr(kOther));
  EXPECT_LT(std::chrono::steady_clock::now() - before, 15s);
  servers.cluster.signal(servers.process(1), SIGCONT);
  EXPECT_TRUE(torch::equal(session.run({there}).front(), torch::ones({3})));
}

TEST(SessionFaults, AServerEndsWhileItGivesAGraphToOneThatStandsStill) {
  ServerProcesses servers(2);
  Graph graph;
  Output there;
  {
    const auto other = graph.with_device(kOther);
    there = ops::sum(graph.constant(torch::ones({kLarge})));
  }
  const Output here = graph.constant(1.0);
  Session session(servers.target(0), graph, {.secret = "test"});
  session.run({here});
  servers.cluster.signal(servers.process(1), SIGSTOP);
  auto asks = std::async(std::launch::async, [&] { return message_of([&] { session.run({there}); }); });
  EXPECT_EQ(asks.wait_for(1s), std::future_status::timeout);
  servers.cluster.signal(servers.process(0), SIGTERM);
  EXPECT_EQ(servers.cluster.wait(servers.process(0), Deadline::after(20s)).exit_code, 0);
  EXPECT_THAT(asks.get(), HasSubstr("has gone"));
}

// A variable that fills most of a server.
struct MuchToKeep {
  MuchToKeep() {
    const Output one = graph.constant(torch::ones({1}));
    kept = graph.variable("kept", ops::mul(ops::expand(one, {kLarge}), 2.0));
    init = graph.initializer();
  }
  Graph graph;
  Output kept;
  Node init;
  const Session::Options options = {.fold_constants = false, .private_variables = true, .secret = "test"};
};

int keep_much(const std::vector<std::string>& arguments) {
  MuchToKeep much;
  Session session(arguments.front(), much.graph, much.options);
  session.run({}, {}, {much.init});
  fmt::print("kept\n");
  std::fflush(stdout);
  pause();
  return 0;
}
const testing::TaskRegistration kKeepMuch("keep-much", keep_much);

// Another one finds room only when what the first has there is gone.
TEST(SessionFaults, WhatAClientKeepsGoesWithItWhetherItDiesOrFallsSilent) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    ServerProcesses servers(1, {.flags = {"--memory-limit", "100M", "--client-silence", "2s"}});
    const int client = servers.cluster.start(
        {.command = {testing::self_path(), "--task-main=keep-much", servers.target(0)}});
    servers.cluster.wait_for_output(client, "kept", soon());
    MuchToKeep much;
    const auto keep = [&] {
      Session session(servers.target(0), much.graph, much.options);
      session.run({}, {}, {much.init});
    };
    EXPECT_THAT(message_of(keep), HasSubstr("memory limit")) << "the client lives";
    servers.cluster.signal(client, signal);
    const auto deadline = Deadline::after(30s);
    std::string refusal = message_of(keep);
    while (refusal != "nothing was thrown" && !deadline.expired()) {
      std::this_thread::sleep_for(50ms);
      refusal = message_of(keep);
    }
    EXPECT_EQ(refusal, "nothing was thrown") << "after signal " << signal;
  }
}

// The client of in-graph replication that forgets to stop the other servers.
int forget_to_stop(const std::vector<std::string>&) {
  Server server = Server::of_environment();
  if (server.task() > 0) {
    server.join();
    return 0;
  }
  Graph graph;
  const Output two = [&] {
    const auto other = graph.with_device("/job:worker/task:1");
    return graph.constant(2.0);
  }();
  Session session(server.target(), graph);
  session.run({two});
  return 0;
}
const testing::TaskRegistration kForgetToStop("forget-to-stop", forget_to_stop);

TEST(SessionFaults, AServerWhoseClientsHaveGoneSaysThatItWaits) {
  testing::ProcessCluster cluster;
  const int job = cluster.start(
      {.command = {testing::beside_self("muster"), "run", "--workers", "2", "--strategy", "none",
                   "--stall-warning", "1s", "--", testing::self_path(), "--task-main=forget-to-stop"}});
  cluster.wait_for_output(job, "/job:worker/task:1: all clients have gone since 1.0 s", soon());
  cluster.signal(job, SIGINT);
  EXPECT_EQ(cluster.wait(job, soon()).exit_code, 130);
}

TEST(SessionFaults, ServersThatCanNotEncryptRefuseTo) {
  testing::ProcessCluster cluster;
  const int job = cluster.start({.command = {testing::beside_self("muster"), "run", "--strategy", "none",
                                             "--tls-cert", "a", "--tls-key", "b", "--tls-ca", "c", "--",
                                             testing::self_path(), "--task-main=forget-to-stop"}});
  const auto result = cluster.wait(job, soon());
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("what sessions and servers of graphs send is not encrypted"));
}

// A value that never comes: the client says for whom it waits when the job's flag says so.
int wait_for_a_queue(const std::vector<std::string>& arguments) {
  Graph graph;
  const Queue queue(graph, "empty", {.capacity = 1, .types = {at::kFloat}});
  Session session(arguments.front(), graph, {.secret = "test"});
  session.run(queue.dequeue());
  return 0;
}
const testing::TaskRegistration kWaitForAQueue("wait-for-a-queue", wait_for_a_queue);

TEST(SessionFaults, ARunThatWaitsSaysSoWhenTheJobsStallWarningSays) {
  ServerProcesses servers(1);
  const int client = servers.cluster.start(
      {.command = {testing::self_path(), "--task-main=wait-for-a-queue", servers.target(0)},
       .environment = {{"MUSTER_STALL_WARNING", "300ms"}}});
  const auto before = std::chrono::steady_clock::now();
  servers.cluster.wait_for_output(client, "a run still waits for /job:task/task:0", soon());
  EXPECT_LT(std::chrono::steady_clock::now() - before, 9s) << "without the flag it is 10 s";
  servers.cluster.signal(client, SIGKILL);
}

TEST(SessionFaults, ARunThatWaitsEndsWhenTheJobsCollectiveTimeoutSays) {
  ServerProcesses servers(1);
  const int client = servers.cluster.start(
      {.command = {testing::self_path(), "--task-main=wait-for-a-queue", servers.target(0)},
       .environment = {{"MUSTER_COLLECTIVE_TIMEOUT", "500ms"}}});
  const auto result = servers.cluster.wait(client, soon());
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("a run took longer than 0.5 s: /job:task/task:0 did not end it"));
}

// A run over both hosts, again and again.
int run_over_hosts(const std::vector<std::string>& arguments) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch});
  Output far;
  {
    const auto other = graph.with_device(kOther);
    far = ops::mul(x, 2.0);
  }
  const Output sum = ops::sum(ops::add(far, x));
  Session session(arguments.front(), graph, {.secret = "test", .timeout = 5s});
  const auto run = [&](int64_t size) {
    const auto found = session.run({sum}, {{x, torch::ones({size})}}).front().item<float>();
    if (found != 3 * static_cast<float>(size)) throw Error(fmt::format("the sum is {}", found));
  };
  try {
    for (int step = 0;; ++step) {
      run(100'000 + step % 7);
      fmt::print("step {}\n", step);
      std::fflush(stdout);
    }
  } catch (const DeadlineExceeded&) {
    // The other task may have done its part before, so that only this one was left, waiting for a value of it.
  }
  run(10);
  return 0;
}
const testing::TaskRegistration kRunOverHosts("run-over-hosts", run_over_hosts);

TEST(SessionFaults, SeveralHostsExchangeValuesUntilOneIsCutOffWhichIsNamed) {
  const testing::Hosts hosts(2);
  ServerProcesses servers(2, {.hosts = &hosts});
  const int client = servers.cluster.start(
      {.command = hosts.on(0, {testing::self_path(), "--task-main=run-over-hosts", servers.target(0)})});
  servers.cluster.wait_for_output(client, "step 50", soon());
  hosts.drop_packets(1);
  const auto result = servers.cluster.wait(client, Deadline::after(30s));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, AllOf(HasSubstr("a run took longer than 5.0 s"), HasSubstr(kOther)));
}

}  // namespace
}  // namespace muster::detail

int main(int argc, char** argv) {
  return muster::detail::testing::run_tests_with_hosts(argc, argv);
}
