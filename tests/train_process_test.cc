// Training by all-reduce in real processes on MNIST: N workers are one worker with N times the batch,
// PyTorch's DistributedDataParallel takes the same steps, and a worker that fails, dies or hangs is named.

#include <signal.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "examples/mnist_data.h"
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
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ProcessCluster;

Deadline soon() {
  return Deadline::after(150s);
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("conv", conv);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv(x)), 4);
    return fc2(torch::relu(fc1(x.flatten(1))));
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 8, 5)};
  torch::nn::Linear fc1{8 * 6 * 6, 64};
  torch::nn::Linear fc2{64, 10};
};
TORCH_MODULE(Net);

void write_parameters(const std::string& path, const torch::nn::Module& net) {
  std::ofstream file(path, std::ios::binary);
  for (const auto& parameter : net.parameters()) {
    const auto dense = parameter.detach().contiguous();
    file.write(static_cast<const char*>(dense.data_ptr()), static_cast<std::streamsize>(dense.nbytes()));
  }
}

std::vector<float> read_floats(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<float> values(bytes.size() / sizeof(float));
  memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

// Flags of the task that trains: what it does, and how it goes wrong.
struct Task {
  int steps = 50;
  int64_t batch = 48;  // of all workers together
  std::string initial;
  std::string out;
  int throw_at = -1;  // worker 1, in this step
  int hang_at = -1;
  int wrong_shape_at = -1;
  bool endless = false;
};

int train(const std::vector<std::string>& arguments) {
  Task task;
  CLI::App app;
  app.add_option("--steps", task.steps);
  app.add_option("--batch", task.batch);
  app.add_option("--initial", task.initial);
  app.add_option("--out", task.out);
  app.add_option("--throw-at", task.throw_at);
  app.add_option("--hang-at", task.hang_at);
  app.add_option("--wrong-shape-at", task.wrong_shape_at);
  app.add_flag("--endless", task.endless);
  std::vector<char*> argv = {const_cast<char*>("train")};
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  return run(app, static_cast<int>(argv.size()) - 1, argv.data(), [&](Job& job) {
    const examples::Mnist data = examples::load_mnist(MUSTER_TEST_MNIST, /*train=*/true);
    torch::manual_seed(job.rank() + 1);  // only the chief's values count
    Net net;
    Trainer trainer(job, net, optim::SGD({.lr = 0.05, .momentum = 0.9}));
    if (job.is_chief() && !task.initial.empty()) write_parameters(task.initial, *net);
    const int64_t mine = task.batch / job.size();
    for (int step = 0; step < task.steps || task.endless; ++step) {
      const int64_t begin = (step * task.batch + job.rank() * mine) % (data.size() - mine);
      trainer.step(
          [&] {
            if (job.rank() == 1 && step == task.throw_at) throw std::runtime_error("the digits ran away");
            if (job.rank() == 1 && step == task.wrong_shape_at) net->fc2->forward(torch::ones({4, 5}));
            const auto out = net->forward(data.images.slice(0, begin, begin + mine));
            if (job.rank() == 1 && step == task.hang_at) {
              fmt::print("hanging\n");
              std::this_thread::sleep_for(1h);
            }
            return torch::cross_entropy_loss(out, data.labels.slice(0, begin, begin + mine));
          },
          mine);
      if (step == 0) fmt::print("training\n");
      if (job.is_chief()) fmt::print("loss {} {:.9g}\n", step, trainer.metrics().loss);
    }
    if (!task.out.empty()) write_parameters(fmt::format("{}.{}", task.out, job.rank()), *net);
  });
}

const testing::TaskRegistration kTrain("train", train);

class TrainProcesses : public ::testing::Test {
 protected:
  TrainProcesses() {
    std::string pattern = (std::filesystem::temp_directory_path() / "muster-train-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~TrainProcesses() override { std::filesystem::remove_all(folder_); }

  /// Starts the workers; each is a process of the cluster. With hosts, they are dealt out to them.
  std::vector<int> start(int workers, const std::vector<std::string>& flags,
                         const std::map<std::string, std::string>& settings = {}) {
    std::string cluster = "worker=";
    for (int i = 0; i < workers; ++i) {
      const std::string address = hosts_ ? hosts_->address(host_of(i)) : "127.0.0.1";
      cluster += fmt::format("{}{}:{}", i == 0 ? "" : ",", address, ports_.emplace_back("127.0.0.1").port());
    }
    std::vector<int> processes;
    for (int i = 0; i < workers; ++i) {
      std::vector<std::string> command = {testing::self_path(), "--task-main=train"};
      command.insert(command.end(), flags.begin(), flags.end());
      std::map<std::string, std::string> environment = settings;
      environment.insert({{"MUSTER_CLUSTER", cluster},
                          {"MUSTER_TASK", fmt::format("/job:worker/task:{}", i)},
                          {"MUSTER_JOB_ID", "test"},
                          {"MUSTER_SECRET", "secret"},
                          {"OMP_NUM_THREADS", "1"}});
      if (hosts_) command = hosts_->on(host_of(i), command);
      processes.push_back(cluster_.start({.command = command, .environment = environment}));
    }
    return processes;
  }

  static int host_of(int worker) { return worker / 2; }

  /// Trains to the end, and gives the parameters of every worker.
  std::vector<std::vector<float>> weights(int workers,
                                          const std::map<std::string, std::string>& settings = {}) {
    const std::string out = folder_ / fmt::format("run{}", runs_++);
    for (const int process : start(workers, {"--out", out}, settings)) {
      const auto result = cluster_.wait(process, soon());
      EXPECT_EQ(result.exit_code, 0) << result.output;
    }
    std::vector<std::vector<float>> all;
    for (int i = 0; i < workers; ++i) all.push_back(read_floats(fmt::format("{}.{}", out, i)));
    return all;
  }

  std::vector<ReservedPort> ports_;  // numbers that no other test has, also where hosts are namespaces
  std::unique_ptr<testing::Hosts> hosts_;
  ProcessCluster cluster_;
  std::filesystem::path folder_;
  int runs_ = 0;
};

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    size += std::pow(static_cast<double>(a[i]), 2);
  }
  return std::sqrt(difference / size);
}

TEST_F(TrainProcesses, SeveralWorkersAreOneWithTheWholeBatchAndAgreeInEveryBit) {
  const auto one = weights(1).front();
  ASSERT_FALSE(one.empty());
  for (const int workers : {2, 3, 4}) {
    const auto first = weights(workers);
    for (const auto& other : first) EXPECT_EQ(other, first.front()) << workers << " workers differ in bits";
    ASSERT_EQ(first.front().size(), one.size());
    EXPECT_LT(relative_difference(one, first.front()), 1e-6) << workers << " workers";
    EXPECT_EQ(weights(workers).front(), first.front()) << "a repetition of " << workers << " workers differs";
  }
}

TEST_F(TrainProcesses, WithoutSharedMemoryTheBitsOfTwoWorkersAreTheSame) {
  EXPECT_EQ(weights(2, {{"MUSTER_SHARED_MEMORY", "off"}, {"MUSTER_BUCKET", "64K"}}), weights(2));
}

TEST_F(TrainProcesses, OnSeveralHostsTheyAreStillOneWithTheWholeBatch) {
  const auto one = weights(1).front();
  hosts_ = std::make_unique<testing::Hosts>(2);
  const auto all = weights(3, {{"MUSTER_BUCKET", "32K"}});  // two workers on one, one on the other
  for (const auto& other : all) EXPECT_EQ(other, all.front());
  EXPECT_LT(relative_difference(one, all.front()), 1e-6);
  EXPECT_EQ(weights(3), all) << "the size of the buckets, measured this time, changes bits";
}

TEST_F(TrainProcesses, HalfAsManyBytesBetweenHostsTrainNearlyTheSame) {
  hosts_ = std::make_unique<testing::Hosts>(2);
  const auto exact = weights(4);
  const auto all = weights(4, {{"MUSTER_WIRE", "bf16"}});
  for (const auto& other : all) EXPECT_EQ(other, all.front());
  EXPECT_LT(relative_difference(exact.front(), all.front()), 0.2);
  EXPECT_GT(relative_difference(exact.front(), all.front()), 0);
}

// They differ by rounding, 1e-7 at first. Training makes that larger, a hundredfold within a few steps where
// a maximum of the pooling is another one: so on some processors from the seventieth step on.
TEST_F(TrainProcesses, PyTorchsDistributedDataParallelHasTheSameLosses) {
  const std::string initial = folder_ / "initial";
  const auto ours = start(2, {"--steps", "50", "--initial", initial});
  std::vector<std::string> outputs;
  for (const int process : ours) {
    const auto result = cluster_.wait(process, soon());
    ASSERT_EQ(result.exit_code, 0) << result.output;
    outputs.push_back(result.output);
  }
  const ReservedPort port("127.0.0.1");
  const int peer = cluster_.start({.command = {MUSTER_TEST_PYTHON, MUSTER_TEST_DDP, initial,
                                               MUSTER_TEST_MNIST, std::to_string(port.port())},
                                   .environment = {{"OMP_NUM_THREADS", "1"}}});
  const auto result = cluster_.wait(peer, soon());
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto losses_of = [](const std::string& output) {
    std::map<int, double> losses;
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) {
      int step = 0;
      double loss = 0;
      if (sscanf(line.c_str(), "loss %d %lf", &step, &loss) == 2) losses[step] = loss;
    }
    return losses;
  };
  const auto mine = losses_of(outputs[0]);
  const auto theirs = losses_of(result.output);
  ASSERT_EQ(mine.size(), 50U);
  ASSERT_EQ(theirs.size(), 50U);
  for (const auto& [step, loss] : mine) EXPECT_NEAR(loss, theirs.at(step), 1e-5) << "step " << step;
  EXPECT_LT(mine.at(49), mine.at(0) / 2);
}

TEST_F(TrainProcesses, AnExceptionInOneWorkersStepEndsAllWhoNameIt) {
  const auto workers = start(3, {"--throw-at", "7", "--endless"});
  std::vector<std::string> outputs;
  for (const int process : workers) {
    const auto result = cluster_.wait(process, soon());
    EXPECT_EQ(result.exit_code, 1);
    outputs.push_back(result.output);
  }
  EXPECT_THAT(outputs[1], HasSubstr("the digits ran away"));
  EXPECT_THAT(outputs[0],
              AllOf(HasSubstr("worker/1 (host "), HasSubstr("the digits ran away")));  // the chief
  EXPECT_THAT(outputs[2], HasSubstr("stopped, because worker/1 (host "));
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(TrainProcesses, AnErrorOfLibtorchIsSaidByItsTaskAndAtTheEndWithoutItsStack) {
  const int launcher = cluster_.start(
      {.command = {testing::beside_self("muster"), "run", "--workers", "3", "--", testing::self_path(),
                   "--task-main=train", "--wrong-shape-at", "2", "--endless"}});
  const auto result = cluster_.wait(launcher, soon());
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_EQ(count_of(result.output, "shapes cannot be multiplied"), 2U) << result.output;
  EXPECT_EQ(count_of(result.output, "frame #"), 0U) << result.output;
  EXPECT_EQ(count_of(result.output, "stopped, because worker/1 (host "), 2U) << result.output;
  EXPECT_THAT(result.output, HasSubstr("muster   | the job was aborted: worker/1 (host "));
  std::istringstream lines(result.output);
  for (std::string line; std::getline(lines, line);) {
    const bool is_of_task = line.starts_with("worker/");
    EXPECT_EQ(is_of_task ? count_of(line, line.substr(0, 8)) : 1U, 1U) << line;
  }
}

TEST_F(TrainProcesses, WorkersOfOneHostThatShareNoMemoryAreSaidToBeOnOneHost) {
  const auto workers = start(2, {"--steps", "1"}, {{"MUSTER_SHARED_MEMORY", "off"}});
  for (const int process : workers) {
    const auto result = cluster_.wait(process, soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, ::testing::Not(HasSubstr("2 hosts")));
    const bool is_chief = process == workers[0];
    EXPECT_TRUE(!is_chief || result.output.find("2 workers on 1 host; not all of a host share memory") !=
                                 std::string::npos)
        << result.output;
  }
}

TEST(TextWithoutStack, IsWhatLibtorchCallsItsMessageWithoutTheStack) {
  try {
    torch::mm(torch::ones({2, 3}), torch::ones({4, 5}));
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("frame #"));
    EXPECT_EQ(text_without_stack(error), error.what_without_backtrace());
  }
}

// The error that a task ends with, not a warning before it.
auto fails_with(const std::string& regex) {
  return ::testing::ContainsRegex("(^|\n)E [^\n]*" + regex);
}

// A generous bound for the promised 3 s, and yet below the heartbeat timeout, which would find it too.
TEST_F(TrainProcesses, AKilledWorkerEndsTheOthersWhoNameIt) {
  const auto workers = start(3, {"--endless"}, {{"MUSTER_HEARTBEAT_TIMEOUT", "60s"}});
  for (const int process : workers) cluster_.wait_for_output(process, "training", soon());
  cluster_.signal(workers[2], SIGKILL);
  EXPECT_EQ(cluster_.wait(workers[2], soon()).signal, SIGKILL);
  const auto killed = Deadline::Clock::now();
  for (const int i : {0, 1}) {
    const auto result = cluster_.wait(workers[static_cast<size_t>(i)], soon());
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.output, fails_with("worker/2 \\(host "));
  }
  EXPECT_LT(Deadline::Clock::now() - killed, 15s);
}

TEST_F(TrainProcesses, AHangNamesTheWorkerAndTheParametersThatItHasNotDelivered) {
  const auto workers = start(2, {"--hang-at", "3", "--endless"},
                             {{"MUSTER_STALL_WARNING", "300ms"}, {"MUSTER_COLLECTIVE_TIMEOUT", "10s"}});
  const auto chief = cluster_.wait(workers[0], soon());
  EXPECT_EQ(chief.exit_code, 1);
  EXPECT_THAT(chief.output, AllOf(HasSubstr("worker/1 (host "), HasSubstr("has not delivered fc2.bias"),
                                  HasSubstr("conv.weight"), HasSubstr("to step 4")));
  cluster_.signal(workers[1], SIGKILL);  // it sleeps for an hour
  cluster_.wait(workers[1], soon());
}

TEST_F(TrainProcesses, AStoppedWorkerIsNamed) {
  const auto workers =
      start(2, {"--endless"}, {{"MUSTER_COLLECTIVE_TIMEOUT", "10s"}, {"MUSTER_HEARTBEAT_TIMEOUT", "60s"}});
  for (const int process : workers) cluster_.wait_for_output(process, "training", soon());
  cluster_.signal(workers[1], SIGSTOP);
  const auto chief = cluster_.wait(workers[0], soon());
  EXPECT_EQ(chief.exit_code, 1);
  EXPECT_THAT(chief.output, fails_with("worker/1 \\(host "));
  cluster_.signal(workers[1], SIGKILL);
  cluster_.wait(workers[1], soon());
}

}  // namespace
}  // namespace muster::detail

int main(int argc, char** argv) {
  return muster::detail::testing::run_tests_with_hosts(argc, argv);
}
