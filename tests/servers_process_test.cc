// Training with parameter servers in real processes: workers and servers that die, stop and come again, and
// hosts that share no memory.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/net/reserved_port.h"
#include "muster/run.h"
#include "muster/testing/hosts.h"
#include "muster/testing/process_cluster.h"
#include "muster/testing/test_main.h"
#include "muster/trainer.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::ProcessCluster;

using Settings = std::map<std::string, std::string>;

Deadline soon() {
  return Deadline::after(100s);
}

// Steps until max_steps are taken, by whichever workers; says how it goes.
int train(const std::vector<std::string>& arguments) {
  int64_t steps = 0;
  std::string out;
  std::string go;  // a file: until it is there, nobody goes beyond a few steps
  std::string write;
  bool second = false;
  bool forks = false;
  CLI::App app;
  app.add_option("--steps", steps);
  app.add_option("--out", out);
  app.add_option("--go", go);
  app.add_option("--write", write,
                 "change a parameter in place after 5 steps: by an operator, or by its data");
  app.add_flag("--second", second, "train another model beside it, in steps 5 to 64 of this worker");
  app.add_flag("--fork", forks, "let a fork of worker 1 train on after 5 steps");
  std::vector<char*> argv = {const_cast<char*>("train")};
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  return run(app, static_cast<int>(argv.size()) - 1, argv.data(), [&](Job& job) {
    torch::manual_seed(job.rank() + 1);  // only the chief's values count
    torch::nn::Sequential net(torch::nn::Linear(20, 300), torch::nn::Tanh(), torch::nn::Linear(300, 5));
    Trainer trainer(job, net, optim::SGD({.lr = 0.01, .momentum = 0.5}), {.max_steps = steps});
    fmt::print("begins at step {}\n", trainer.steps());
    torch::manual_seed(100 + job.rank());
    const auto x = torch::randn({16, 20});
    const auto y = torch::randn({16, 5});
    torch::nn::Linear other(20, 5);
    std::optional<Trainer> other_trainer;
    Deadline::Clock::duration longest{0};
    const auto timed_step = [&] {
      const auto began = Deadline::Clock::now();
      const auto step = trainer.step([&] { return torch::mse_loss(net->forward(x), y); }, 16);
      longest = std::max(longest, Deadline::Clock::now() - began);
      return step.goes_on;
    };
    for (int taken = 1; timed_step(); ++taken) {
      if (taken == 5) fmt::print("training\n");
      if (taken == 5 && forks && job.rank() == 1) {
        fflush(stdout);
        const pid_t fork_of_it = fork();
        if (fork_of_it == 0) continue;  // as if it were the worker
        int status = 0;
        waitpid(fork_of_it, &status, 0);
        fmt::print("the fork ended with {}\n", WEXITSTATUS(status));
      }
      if (taken == 5 && !write.empty()) {
        const torch::NoGradGuard no_grad;
        auto parameter = net->parameters().at(2);
        (write == "data" ? parameter.data() : parameter).mul_(0.9);
      }
      while (taken >= 5 && !go.empty() && !std::filesystem::exists(go)) std::this_thread::sleep_for(20ms);
      if (taken == 5 && second) other_trainer.emplace(job, other, optim::SGD({.lr = 0.01}));
      // At the end of one model a worker waits for the last gradients of the others, which must not wait for
      // it in the other model.
      if (taken == 65) other_trainer.reset();
      if (other_trainer) other_trainer->step([&] { return torch::mse_loss(other->forward(x), y); }, 16);
    }
    fmt::print("ended at step {}\n", trainer.steps());
    fmt::print("longest step: {} ms\n", longest / 1ms);
    if (out.empty()) return;
    std::ofstream file(fmt::format("{}.{}", out, job.rank()), std::ios::binary);
    for (const auto& parameter : net->parameters()) {
      const auto dense = parameter.detach().contiguous();
      file.write(static_cast<const char*>(dense.data_ptr()), static_cast<std::streamsize>(dense.nbytes()));
    }
  });
}

const testing::TaskRegistration kTrain("train", train);

// Whoever finds out says so, and the others name that task where they hear of it before they do.
auto says_or_names(const std::string& regex) {
  return ::testing::ContainsRegex(
      fmt::format("{}|stopped(, because|: the job was aborted:) (worker|ps)/[0-9] \\(host ", regex));
}

class ServersProcesses : public ::testing::Test {
 protected:
  ServersProcesses() {
    std::string pattern = (std::filesystem::temp_directory_path() / "muster-servers-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~ServersProcesses() override { std::filesystem::remove_all(folder_); }

  struct Job {
    std::vector<int> workers;
    std::vector<int> servers;
  };

  /// With hosts, servers are on the first and workers on the second.
  Job start(int workers, int servers, const std::vector<std::string>& flags, const Settings& settings) {
    cluster_text_ = "worker=";
    for (int i = 0; i < workers + servers; ++i) {
      const std::string address = hosts_ ? hosts_->address(i < workers ? 1 : 0) : "127.0.0.1";
      cluster_text_ += fmt::format("{}{}:{}",
                                   i == workers ? ";ps="
                                   : i == 0     ? ""
                                                : ",",
                                   address, ports_.emplace_back("127.0.0.1").port());
    }
    flags_ = flags;
    settings_ = settings;
    Job job;
    for (int i = 0; i < workers; ++i) job.workers.push_back(start_task("worker", i, 0));
    for (int i = 0; i < servers; ++i) job.servers.push_back(start_task("ps", i, 0));
    return job;
  }

  int start_task(const std::string& name, int index, int incarnation) {
    std::vector<std::string> command = {testing::self_path(), "--task-main=train"};
    command.insert(command.end(), flags_.begin(), flags_.end());
    Settings environment = settings_;
    environment.insert({{"MUSTER_CLUSTER", cluster_text_},
                        {"MUSTER_TASK", fmt::format("/job:{}/task:{}", name, index)},
                        {"MUSTER_JOB_ID", "test"},
                        {"MUSTER_SECRET", "secret"},
                        {"MUSTER_RESTART_COUNT", std::to_string(incarnation)},
                        {"OMP_NUM_THREADS", "1"}});
    if (hosts_) command = hosts_->on(name == "worker" ? 1 : 0, command);
    return cluster_.start({.command = command, .environment = environment});
  }

  std::string go_file() const { return folder_ / "go"; }
  void go() const { std::ofstream(go_file()) << "go"; }

  void expect_success(int process) {
    const auto result = cluster_.wait(process, soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }

  /// All of them end with an error, for this reason: at least one says so.
  void expect_all_name(const std::vector<int>& processes, const std::string& regex) {
    int saying = 0;
    for (const int process : processes) {
      const auto result = cluster_.wait(process, soon());
      EXPECT_EQ(result.exit_code, 1);
      EXPECT_THAT(result.output, says_or_names(regex));
      saying += ::testing::Value(result.output, ::testing::ContainsRegex(regex)) ? 1 : 0;
    }
    EXPECT_GT(saying, 0) << "nobody says " << regex;
  }

  /// Trains to the end, and gives the bytes of the parameters of every worker.
  std::vector<std::string> weights(int workers, int servers, const Settings& settings) {
    const std::string out = folder_ / fmt::format("run{}", runs_++);
    const Job job = start(workers, servers, {"--steps", "30", "--out", out}, settings);
    for (const int process : job.workers) expect_success(process);
    for (const int process : job.servers) expect_success(process);
    std::vector<std::string> all;
    for (int i = 0; i < workers; ++i) {
      std::ifstream file(fmt::format("{}.{}", out, i), std::ios::binary);
      all.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      EXPECT_FALSE(all.back().empty());
    }
    return all;
  }

  std::vector<ReservedPort> ports_;  // numbers that no other test has, also where hosts are namespaces
  std::string cluster_text_;
  std::vector<std::string> flags_;
  Settings settings_;
  std::unique_ptr<testing::Hosts> hosts_;
  ProcessCluster cluster_;
  std::filesystem::path folder_;
  int runs_ = 0;
};

TEST_F(ServersProcesses, OneWorkerHasTheSameBitsInEachModeAndAlone) {
  const auto alone = weights(1, 0, {});
  for (const char* mode : {"ps-sync", "ps-async", "ps-ssp"}) {
    for (const int servers : {1, 2})
      EXPECT_EQ(weights(1, servers, {{"MUSTER_STRATEGY", mode}}), alone) << mode;
  }
}

TEST_F(ServersProcesses, SynchronousWorkersHaveTheSameBitsOnOneHostAndOnSeveralHosts) {
  const auto here = weights(2, 2, {{"MUSTER_STRATEGY", "ps-sync"}});
  EXPECT_EQ(here[0], here[1]);
  EXPECT_EQ(weights(2, 2, {{"MUSTER_STRATEGY", "ps-sync"}, {"MUSTER_SHARED_MEMORY", "off"}}), here);
  hosts_ = std::make_unique<testing::Hosts>(2);
  EXPECT_EQ(weights(2, 2, {{"MUSTER_STRATEGY", "ps-sync"}, {"MUSTER_SOCKETS", "3"}}), here);
}

// They are in memory that workers may only read, where this was the end of a worker by SIGSEGV, and the job
// went on without it.
TEST_F(ServersProcesses, AWorkerThatWritesToTheServersParametersIsToldWhichItWas) {
  for (const Settings& settings : {Settings{{"MUSTER_STRATEGY", "ps-sync"}},
                                   Settings{{"MUSTER_STRATEGY", "ps-async"}, {"MUSTER_HOGWILD", "on"}}}) {
    for (const char* how : {"operator", "data"}) {
      const Job job = start(2, 1, {"--steps", "100000", "--write", how}, settings);
      std::string output;  // of both: whichever is first says it
      for (const int process : job.workers) {
        const auto result = cluster_.wait(process, soon());
        EXPECT_EQ(result.exit_code, 1) << how << "\n" << result.output;
        output += result.output;
      }
      EXPECT_THAT(output, HasSubstr("the parameter 2.weight was changed in place")) << how;
      for (const int process : job.servers) cluster_.wait(process, soon());
    }
  }
}

// A mode with what applies to it.
Settings settings_of(const std::string& mode, int staleness) {
  Settings settings = {{"MUSTER_STRATEGY", mode}};
  if (mode == "ps-ssp") settings["MUSTER_STALENESS"] = std::to_string(staleness);
  if (mode == "ps-local") settings["MUSTER_SYNC_EVERY"] = "2";
  return settings;
}

class EachMode : public ServersProcesses, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Modes, EachMode, ::testing::Values("ps-sync", "ps-async", "ps-ssp", "ps-local"));

TEST_P(EachMode, AKilledWorkerIsDoneWithoutAndServersEndToo) {
  const Job job =
      start(3, 2, {"--steps", "200", "--go", go_file()}, settings_of(GetParam(), /*staleness=*/40));
  for (const int process : job.workers) cluster_.wait_for_output(process, "training", soon());
  cluster_.signal(job.workers[2], SIGKILL);
  EXPECT_EQ(cluster_.wait(job.workers[2], soon()).signal, SIGKILL);
  go();
  for (const int i : {0, 1}) {
    const auto result = cluster_.wait(job.workers[static_cast<size_t>(i)], soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("ended at step 200"));
  }
  const auto server = cluster_.wait(job.servers[0], soon());
  EXPECT_EQ(server.exit_code, 0) << server.output;
  if (std::string(GetParam()) == "ps-sync") {
    EXPECT_THAT(server.output, HasSubstr("worker/2 has failed: averaging 2 gradients instead of 3"));
  }
  expect_success(job.servers[1]);
}

TEST_P(EachMode, AModelThatIsMadeAfterAWorkerDiedDoesNotWaitForIt) {
  const Job job = start(3, 2, {"--steps", "200", "--go", go_file(), "--second"},
                        settings_of(GetParam(), /*staleness=*/40));
  for (const int process : job.workers) cluster_.wait_for_output(process, "training", soon());
  cluster_.signal(job.workers[2], SIGKILL);
  EXPECT_EQ(cluster_.wait(job.workers[2], soon()).signal, SIGKILL);
  go();
  for (const int i : {0, 1}) {
    const auto result = cluster_.wait(job.workers[static_cast<size_t>(i)], soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("ended at step 200"));
  }
  for (const int process : job.servers) expect_success(process);
}

TEST_P(EachMode, AStoppedWorkerHoldsNobodyUpForLongerThanTwiceTheHeartbeat) {
  constexpr auto kHeartbeatTimeout = 4s;
  constexpr auto kStep = 4s;  // what it takes at most to compute one, on a slow machine
  Settings settings = settings_of(GetParam(), /*staleness=*/5);
  settings["MUSTER_HEARTBEAT_TIMEOUT"] = fmt::format("{}s", kHeartbeatTimeout.count());
  const Job job = start(2, 1, {"--steps", "100", "--go", go_file()}, settings);
  for (const int process : job.workers) cluster_.wait_for_output(process, "training", soon());
  cluster_.signal(job.workers[1], SIGSTOP);
  go();
  const auto chief = cluster_.wait(job.workers[0], soon());
  EXPECT_EQ(chief.exit_code, 0) << chief.output;
  EXPECT_THAT(chief.output, HasSubstr("ended at step 100"));
  expect_success(job.servers[0]);
  const size_t longest = chief.output.find("longest step: ");
  ASSERT_NE(longest, std::string::npos);
  EXPECT_LT(std::stoi(chief.output.substr(longest + strlen("longest step: "))) * 1ms,
            2 * kHeartbeatTimeout + kStep);
  cluster_.signal(job.workers[1], SIGKILL);
  cluster_.wait(job.workers[1], soon());
}

TEST_F(ServersProcesses, AWorkerThatIsStartedAgainEntersAtTheCurrentStep) {
  const Job job = start(2, 1, {"--steps", "300", "--go", go_file()}, {{"MUSTER_STRATEGY", "ps-async"}});
  for (const int process : job.workers) cluster_.wait_for_output(process, "training", soon());
  cluster_.signal(job.workers[1], SIGKILL);
  cluster_.wait(job.workers[1], soon());
  const int again = start_task("worker", 1, 1);
  cluster_.wait_for_output(again, "training", soon());
  go();
  expect_success(job.workers[0]);
  const auto result = cluster_.wait(again, soon());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, ::testing::AllOf(HasSubstr("begins at step"), HasSubstr("ended at step 300")));
  EXPECT_THAT(result.output, ::testing::Not(HasSubstr("begins at step 0\n")));
  expect_success(job.servers[0]);
}

TEST_F(ServersProcesses, AServerThatDiesEndsTheJobWithAnErrorThatNamesIt) {
  const Job job =
      start(2, 1, {"--steps", "1000000"}, {{"MUSTER_STRATEGY", "ps-async"}, {"MUSTER_SERVER_WAIT", "1s"}});
  for (const int process : job.workers) cluster_.wait_for_output(process, "training", soon());
  cluster_.signal(job.servers[0], SIGKILL);
  expect_all_name(job.workers, "\nE [^\n]*parameter server 0 did not come back");
}

TEST_F(ServersProcesses, AForkThatTrainsOnIsToldThatItCantAndTheWorkerTrainsOn) {
  for (const std::string strategy : {"ps-async", "ps-sync"}) {
    std::filesystem::remove(go_file());
    const Job job =
        start(2, 1, {"--steps", "60", "--fork", "--go", go_file()}, {{"MUSTER_STRATEGY", strategy}});
    for (const int process : job.workers) cluster_.wait_for_output(process, "training", soon());
    go();
    expect_success(job.workers[0]);
    const auto result = cluster_.wait(job.workers[1], soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output,
                ::testing::AllOf(HasSubstr("a fork of worker/1"), HasSubstr("has none of that one's threads"),
                                 HasSubstr("the fork ended with 1"), HasSubstr("ended at step 60")));
    expect_success(job.servers[0]);
  }
}

// Its connections stay open: that it has failed only the coordinator knows.
TEST_F(ServersProcesses, AServerThatIsStoppedIsWaitedForAndThenEndsTheJobByName) {
  const Job job = start(
      2, 1, {"--steps", "1000000"},
      {{"MUSTER_STRATEGY", "ps-sync"}, {"MUSTER_HEARTBEAT_TIMEOUT", "3s"}, {"MUSTER_SERVER_WAIT", "2s"}});
  for (const int process : job.workers) cluster_.wait_for_output(process, "training", soon());
  cluster_.signal(job.servers[0], SIGSTOP);
  const auto stopped = Deadline::Clock::now();
  for (const int process : job.workers) {
    const auto result = cluster_.wait(process, soon());
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.output, HasSubstr("parameter server 0 is gone (ps/0 has failed"));
  }
  EXPECT_LT(Deadline::Clock::now() - stopped, 30s);
  cluster_.signal(job.servers[0], SIGKILL);
  cluster_.wait(job.servers[0], soon());
}

TEST_F(ServersProcesses, AServerOfTwoModelsThatDiesEndsTheJobWithAnErrorThatNamesIt) {
  const Job job = start(2, 1, {"--steps", "1000000", "--second"},
                        {{"MUSTER_STRATEGY", "ps-sync"}, {"MUSTER_SERVER_WAIT", "1s"}});
  for (const int process : job.workers) cluster_.wait_for_output(process, "training", soon());
  cluster_.wait_for_output(job.servers[0], "model 2:", soon());
  cluster_.signal(job.servers[0], SIGKILL);
  // It may die while a worker comes to it with the second model.
  expect_all_name(job.workers, "\nE [^\n]*parameter server 0(:| is gone| did not come back)");
}

TEST_F(ServersProcesses, AServerThatIsStartedAgainWithoutACheckpointEndsTheJobAndSaysWhy) {
  const Job job = start(2, 1, {"--steps", "1000000"}, {{"MUSTER_STRATEGY", "ps-sync"}});
  for (const int process : job.workers) cluster_.wait_for_output(process, "training", soon());
  cluster_.signal(job.servers[0], SIGKILL);
  cluster_.wait(job.servers[0], soon());
  const int again = start_task("ps", 0, 1);
  for (const int process : job.workers) {
    const auto result = cluster_.wait(process, soon());
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.output, says_or_names("there is no checkpoint"));
    // The chief, in any case.
    EXPECT_TRUE(process != job.workers[0] ||
                result.output.find("there is no checkpoint") != std::string::npos);
  }
  EXPECT_EQ(cluster_.wait(again, soon()).exit_code, 1);
}

// Whoever misses it first says so: the leader, which sends it commands, or a worker.
TEST_F(ServersProcesses, OneOfTwoServersThatDiesEndsTheJobWithAnErrorThatNamesIt) {
  const Job job =
      start(2, 2, {"--steps", "1000000"}, {{"MUSTER_STRATEGY", "ps-async"}, {"MUSTER_SERVER_WAIT", "1s"}});
  for (const int process : job.workers) cluster_.wait_for_output(process, "training", soon());
  cluster_.signal(job.servers[1], SIGKILL);
  expect_all_name({job.workers[0], job.workers[1], job.servers[0]},
                  "parameter server 1 (is gone, and|did not come back)");
}

}  // namespace
}  // namespace muster::detail

int main(int argc, char** argv) {
  return muster::detail::testing::run_tests_with_hosts(argc, argv);
}
