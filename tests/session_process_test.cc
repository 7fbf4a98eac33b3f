// Sessions on clusters of real processes: servers and clients that die, stop and come again, and the examples
// as users run them.

#include <signal.h>

#include <future>
#include <thread>

#include "server_processes.h"
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/net/reserved_port.h"
#include "muster/ops.h"
#include "muster/server.h"
#include "muster/session.h"
#include "muster/testing/message_of.h"
#include "muster/testing/process_cluster.h"
#include "muster/testing/test_main.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using testing::beside_self;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Not;
using testing::ProcessCluster;
using testing::ServerProcesses;
using testing::soon;

// A variable on task 1, and much work there before anything comes back; `started` counts how often it began.
struct LongWork {
  explicit LongWork(int products) {
    {
      const auto other = graph.with_device("/job:task/task:1");
      w = graph.variable("w", torch::eye(700));
      started = graph.variable("started", torch::zeros({}));
      const auto after = graph.control_dependencies({graph.assign_add(started, graph.constant(1.0))});
      Output y = graph.read(w);
      for (int i = 0; i < products; ++i) y = ops::matmul(y, w);
      far = y;
    }
    near = ops::sum(far);
    init = graph.initializer();
  }

  Graph graph;
  Output w;
  Output started;
  Output far;
  Output near;
  Node init;
};

constexpr int kEndless = 20000;

int run_long_work(const std::vector<std::string>& arguments) {
  LongWork work(kEndless);
  Session session(arguments.front(), work.graph, {.private_variables = true});
  session.run({}, {}, {work.init});
  fmt::print("running\n");
  std::fflush(stdout);
  session.run({work.near});
  return 0;
}
const testing::TaskRegistration kLongWork("long-work", run_long_work);

TEST(SessionProcesses, AServerThatIsKilledInAStepIsNamedAndMayComeBack) {
  ServerProcesses servers(2);
  LongWork work(kEndless);
  Session session(servers.target(0), work.graph, {.secret = "test"});
  session.run({}, {}, {work.init});
  auto step = std::async(std::launch::async, [&] { return message_of([&] { session.run({work.near}); }); });
  const auto deadline = soon();
  while (session.run({work.started}).front().item<float>() == 0 && !deadline.expired())
    std::this_thread::sleep_for(10ms);
  servers.cluster.signal(servers.process(1), SIGKILL);
  const auto killed = std::chrono::steady_clock::now();
  EXPECT_THAT(step.get(), HasSubstr("/job:task/task:1 was lost"));
  EXPECT_LT(std::chrono::steady_clock::now() - killed, 3s);
  EXPECT_THAT(message_of([&] { session.run({work.w}); }), HasSubstr("/job:task/task:1 was lost"))
      << "it is not back yet";
  servers.start(1);
  EXPECT_THAT(message_of([&] { session.run({work.w}); }), HasSubstr("'w'")) << "what it kept is lost";
  session.run({}, {}, {work.init});
  EXPECT_TRUE(torch::equal(session.run({work.w}).front(), torch::eye(700)));
}

TEST(SessionProcesses, AServerThatStandsStillHoldsNobodyBeyondTheTimeOfARun) {
  ServerProcesses servers(2);
  LongWork work(1);
  Session session(servers.target(0), work.graph, {.secret = "test", .timeout = 2s});
  session.run({}, {}, {work.init});
  session.run({work.near});
  servers.cluster.signal(servers.process(1), SIGSTOP);
  EXPECT_THAT(message_of([&] { session.run({work.near}); }),
              AllOf(HasSubstr("a run took longer than 2.0 s"), HasSubstr("/job:task/task:1")));
  servers.cluster.signal(servers.process(1), SIGCONT);
  EXPECT_EQ(session.run({work.near}).front().item<float>(), 700);
}

// The step that it asked for ends with it, so that the server can be stopped at once.
TEST(SessionProcesses, AClientThatDiesLeavesNothingBehind) {
  ServerProcesses servers(2);
  const int client =
      servers.cluster.start({.command = {testing::self_path(), "--task-main=long-work", servers.target(0)},
                             .environment = {{"MUSTER_SECRET", "test"}}});
  servers.cluster.wait_for_output(client, "running", soon());
  servers.cluster.signal(client, SIGKILL);
  EXPECT_EQ(servers.cluster.wait(client, soon()).signal, SIGKILL);
  LongWork work(1);
  {
    Session session(servers.target(1), work.graph, {.secret = "test"});
    EXPECT_THAT(message_of([&] { session.run({work.w}); }), HasSubstr("'w'")) << "it was the client's own";
  }
  servers.cluster.signal(servers.process(0), SIGTERM);
  EXPECT_EQ(servers.cluster.wait(servers.process(0), soon()).exit_code, 0);
  Server::stop(servers.target(1), {.secret = "test"});
  const auto stopped = servers.cluster.wait(servers.process(1), soon());
  EXPECT_EQ(stopped.exit_code, 0);
  EXPECT_THAT(stopped.output, HasSubstr("stopped"));
}

TEST(SessionProcesses, TheClassicHelloIsAsPeopleRememberIt) {
  ProcessCluster cluster;
  const ReservedPort first("127.0.0.1");
  const ReservedPort second("127.0.0.1");
  const auto start = [&](const char* task) {
    return cluster.start(
        {.command = {beside_self("hello_session"), task, "--addresses",
                     fmt::format("127.0.0.1:{}", first.port()), fmt::format("127.0.0.1:{}", second.port())},
         .environment = {{"MUSTER_SECRET", "test"}}});
  };
  const int client = start("0");
  cluster.wait_for_output(
      client, "CreateSession still waiting for response from worker: /job:local/replica:0/task:1", soon());
  const int other = start("1");
  const auto result = cluster.wait(client, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("hello: (muster::constant): /job:local/replica:0/task:1/device:cpu:0"),
                    HasSubstr("squared: (aten::mul.Tensor): /job:local/replica:0/task:0/device:cpu:0"),
                    HasSubstr("the squares of what task 1 has: 1 4 9 16 25")));
  Server::stop(fmt::format("grpc://127.0.0.1:{}", second.port()), {.secret = "test"});
  EXPECT_EQ(cluster.wait(other, soon()).exit_code, 0);
}

TEST(SessionProcesses, InGraphReplicationTrains) {
  ProcessCluster cluster;
  const int job = cluster.start({.command = {beside_self("muster"), "run", "--workers", "2", "--ps", "2",
                                             "--strategy", "none", "--", beside_self("in_graph_mnist")}});
  const auto result = cluster.wait(job, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, ContainsRegex("epoch 5: loss [0-9.]+, accuracy 9[1-9]"));
}

TEST(SessionProcesses, APipelineTrainsInEverySchedule) {
  for (const auto* schedule : {"gpipe", "1f1b", "zero-bubble"}) {
    ProcessCluster cluster;
    const int job =
        cluster.start({.command = {beside_self("muster"), "run", "--workers", "2", "--strategy", "none", "--",
                                   beside_self("pipeline"), "--epochs", "2", "--schedule", schedule}});
    const auto result = cluster.wait(job, soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, ContainsRegex("epoch 2: loss [0-9.]+, accuracy 9[3-9]")) << schedule;
  }
}

TEST(SessionProcesses, AModelIsCutByMeasuredTimes) {
  ProcessCluster cluster;
  const int job =
      cluster.start({.command = {beside_self("muster"), "run", "--workers", "3", "--strategy", "none", "--",
                                 beside_self("pipeline"), "--epochs", "2", "--stages", "3"}});
  const auto result = cluster.wait(job, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, ContainsRegex("/job:worker/task:2: .* to cross_entropy_loss"));
  EXPECT_THAT(result.output, ContainsRegex("epoch 2: loss [0-9.]+, accuracy 9[3-9]"));
}

TEST(SessionProcesses, AModelLargerThanATaskIsTrainedOnTwo) {
  const auto run = [](const std::string& tasks) {
    ProcessCluster cluster;
    const int job =
        cluster.start({.command = {beside_self("muster"), "run", "--workers", "2", "--strategy", "none", "--",
                                   beside_self("model_parallel"), "--tasks", tasks}});
    return cluster.wait(job, soon());
  };
  const auto fits = run("2");
  EXPECT_EQ(fits.exit_code, 0) << fits.output;
  EXPECT_THAT(fits.output, ContainsRegex("step 39: loss 0\\.[0-3]"));
  const auto too_large = run("1");
  EXPECT_EQ(too_large.exit_code, 1) << too_large.output;
  EXPECT_THAT(too_large.output, ContainsRegex("node 'layer.*raise its memory limit"));
}

TEST(SessionProcesses, BetweenGraphReplicationTrains) {
  ProcessCluster cluster;
  const int job =
      cluster.start({.command = {beside_self("muster"), "run", "--workers", "2", "--ps", "2", "--strategy",
                                 "none", "--", beside_self("between_graph_mnist")}});
  const auto result = cluster.wait(job, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, ContainsRegex("after 100[0-9] steps: accuracy (89|9[0-9])"));
}

TEST(SessionProcesses, SynchronousReplicasTrain) {
  ProcessCluster cluster;
  const int job = cluster.start(
      {.command = {beside_self("muster"), "run", "--workers", "2", "--ps", "2", "--strategy", "none", "--",
                   beside_self("between_graph_mnist"), "--sync", "--steps", "500"}});
  const auto result = cluster.wait(job, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, ContainsRegex("after 500 steps: accuracy (8[5-9]|9[0-9])"));
}

// between_graph_mnist with a server and some workers, each started by hand, as by any launcher that does not
// end all when one does.
class BetweenGraph {
 public:
  BetweenGraph(int count, std::vector<std::string> flags, const std::string& stall_warning = "10m")
      : command_(std::move(flags)), stall_warning_(stall_warning) {
    command_.insert(command_.begin(), beside_self("between_graph_mnist"));
    for (int i = 0; i <= count; ++i)
      addresses_.push_back(fmt::format("\"127.0.0.1:{}\"", ports_.emplace_back("127.0.0.1").port()));
    ps = start("ps", 0);
    for (int i = 0; i < count; ++i) workers.push_back(start("worker", i));
  }

  ProcessCluster cluster;
  int ps = -1;
  std::vector<int> workers;

 private:
  int start(const char* job, int task) {
    const std::vector<std::string> others(addresses_.begin() + 1, addresses_.end());
    const std::string task_config = fmt::format(
        "{{\"cluster\": {{\"ps\": [{}], \"worker\": [{}]}}, \"task\": {{\"type\": \"{}\", "
        "\"index\": {}}}}}",
        addresses_.front(), fmt::join(others, ", "), job, task);
    return cluster.start({.command = command_,
                          .environment = {{"MUSTER_SECRET", "test"},
                                          {"MUSTER_STALL_WARNING", stall_warning_},
                                          {"OMP_NUM_THREADS", "1"},
                                          {"TF_CONFIG", task_config}}});
  }

  std::vector<std::string> command_;
  std::string stall_warning_;
  std::vector<ReservedPort> ports_;
  std::vector<std::string> addresses_;
};

void expect_others_go_on_when_a_worker_dies(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"--steps", "3000"});
  BetweenGraph job(2, std::move(flags));
  job.cluster.wait_for_output(job.workers[0], ": loss ", soon());
  job.cluster.signal(job.workers[1], SIGKILL);
  EXPECT_EQ(job.cluster.wait(job.workers[1], soon()).signal, SIGKILL);
  const auto result = job.cluster.wait(job.workers[0], soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, ContainsRegex("after 300[01] steps: accuracy 9"));
  EXPECT_EQ(job.cluster.wait(job.ps, soon()).exit_code, 0) << "the chief stops it";
}

TEST(SessionProcesses, AWorkerThatDiesLeavesTheOthersRunning) {
  expect_others_go_on_when_a_worker_dies({});
}

TEST(SessionProcesses, AReplicaThatDiesLeavesTheOthersRunning) {
  expect_others_go_on_when_a_worker_dies({"--sync"});
}

void expect_all_to_end(BetweenGraph& job) {
  for (const int worker : job.workers) {
    const auto result = job.cluster.wait(worker, soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
  EXPECT_EQ(job.cluster.wait(job.ps, soon()).exit_code, 0);
}

TEST(SessionProcesses, ReplicasGoOnWithoutABackupWorkerThatStandsStill) {
  BetweenGraph job(3, {"--steps", "500", "--sync", "--replicas-to-aggregate", "2"});
  job.cluster.wait_for_output(job.workers[0], ": loss ", soon());
  job.cluster.signal(job.workers[2], SIGSTOP);
  job.cluster.wait_for_output(job.workers[0], "after 500 steps", soon());
  job.cluster.signal(job.workers[2], SIGCONT);
  expect_all_to_end(job);
}

TEST(SessionProcesses, ReplicasWaitForOneThatStandsStillAndTheServerNamesIt) {
  BetweenGraph job(2, {"--steps", "500", "--sync"}, /*stall_warning=*/"1s");  // much sooner than 10 min
  job.cluster.wait_for_output(job.workers[0], ": loss ", soon());
  job.cluster.signal(job.workers[1], SIGSTOP);
  job.cluster.wait_for_output(job.ps, "replica 0 waits for one gradient more of replicas 1", soon());
  EXPECT_THAT(job.cluster.output(job.workers[0]), Not(HasSubstr("after 500 steps")));
  job.cluster.signal(job.workers[1], SIGCONT);
  expect_all_to_end(job);
}

TEST(SessionProcesses, BadCommandLinesAreRefused) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{}, "nobody says which task of which cluster this process is"},
      {{"--task", "0"}, "--cluster is missing"},
      {{"--cluster", "a=127.0.0.1:2222", "--task", "0"}, "which of its tasks this is"},
      {{"--cluster", "a=127.0.0.1:2222", "--job", "a", "--task", "3"},
       "the cluster has no task /job:a/task:3"},
      {{"--cluster", "a=127.0.0.1:2222", "--job", "a", "--task", "x"}, "is no number of a task"},
      {{"--cluster", "nonsense", "--task", "a/0"}, "nonsense"},
      {{"--stop", "grpc://127.0.0.1:1", "--job", "a"}, "--stop takes the target alone"},
      {{"--stop", "somewhere"}, "'somewhere' is no target"}};
  for (const auto& [flags, expected] : cases) {
    std::vector<std::string> command = {beside_self("muster"), "server"};
    command.insert(command.end(), flags.begin(), flags.end());
    ProcessCluster cluster;
    const int process = cluster.start({.command = command, .environment = {{"MUSTER_SECRET", "test"}}});
    const auto result = cluster.wait(process, soon());
    EXPECT_EQ(result.exit_code, 2) << result.output;
    EXPECT_THAT(result.output, HasSubstr(expected));
  }
}

}  // namespace
}  // namespace muster::detail

int main(int argc, char** argv) {
  return muster::detail::testing::run_tests(argc, argv);
}
