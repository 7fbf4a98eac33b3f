// Collectives between processes, on one host and on several: they run, and when a rank is killed, stopped or
// cut off, the others name it.

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include "run_task.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/collective/topology.h"
#include "muster/communicator.h"
#include "muster/net/reserved_port.h"
#include "muster/run.h"
#include "muster/testing/hosts.h"
#include "muster/testing/process_cluster.h"
#include "muster/testing/test_main.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::Hosts;
using testing::ProcessCluster;
using testing::soon;

// A rank that is killed is named by all others within 3 s. On a machine that does much else at the same time
// it may take longer.
constexpr auto kNamedWithin = 15s;

// A rank that reduces for ever, or for as many steps as it is told, and says how it ended.
int reduce(const std::vector<std::string>& arguments) {
  const int steps = std::stoi(arguments.at(0));
  const auto limit = std::chrono::milliseconds(std::stoi(arguments.at(1)));
  return run_task([&](Job& job) {
    Communicator& comm = job.communicator();
    const auto memory = comm.allocate(4 << 20);
    const std::span<float> arena(static_cast<float*>(memory.get()), 1 << 20);
    std::vector<float> ordinary(1 << 18);
    const auto n = static_cast<float>(comm.size());
    fmt::print("{} ranks on {} hosts\n", comm.size(), comm.topology().hosts());
    auto last = Deadline::Clock::now();
    try {
      for (int step = 0; step < steps; ++step) {
        for (const std::span<float> data : {arena, std::span<float>(ordinary)}) {
          for (size_t i = 0; i < data.size(); ++i)
            data[i] = static_cast<float>(comm.rank() + 1) * static_cast<float>(i % 16);
          comm.all_reduce(data.data(), data.size(), DType::kFloat32, ReduceOp::kSum, Deadline::after(limit));
          for (size_t i = 0; i < data.size(); ++i) {
            if (data[i] != n * (n + 1) / 2 * static_cast<float>(i % 16))
              raise<Error>("element {} of step {} is {}", i, step, data[i]);
          }
        }
        last = Deadline::Clock::now();
        if (step == 0) fmt::print("reducing\n");
      }
      fmt::print("all steps were right\n");
    } catch (const PeerLost& error) {
      fmt::print("PeerLost after {}: {}\n", format_seconds(Deadline::Clock::now() - last), error.what());
      throw;
    } catch (const DeadlineExceeded& error) {
      fmt::print("DeadlineExceeded after {}: {}\n", format_seconds(Deadline::Clock::now() - last),
                 error.what());
      throw;
    }
  });
}

const testing::TaskRegistration kReduce("reduce", reduce);

// Ranks as processes, all here or each on a host of its own.
class Ranks {
 public:
  Ranks(int count, const Hosts* hosts) : count_(count), hosts_(hosts) {}

  void start(int steps, std::chrono::milliseconds limit, std::map<std::string, std::string> settings = {}) {
    std::string cluster = "worker=";
    for (int rank = 0; rank < count_; ++rank) {
      const std::string address = hosts_ != nullptr ? hosts_->address(rank) : "127.0.0.1";
      cluster +=
          fmt::format("{}{}:{}", rank == 0 ? "" : ",", address, ports_.emplace_back("127.0.0.1").port());
    }
    for (int rank = 0; rank < count_; ++rank) {
      std::map<std::string, std::string> environment = settings;
      environment.insert({{"MUSTER_TASK", fmt::format("/job:worker/task:{}", rank)},
                          {"MUSTER_CLUSTER", cluster},
                          {"MUSTER_JOB_ID", "test"},
                          {"MUSTER_SECRET", "secret"}});
      std::vector<std::string> command = {testing::self_path(), "--task-main=reduce", std::to_string(steps),
                                          std::to_string(limit.count())};
      if (hosts_ != nullptr) command = hosts_->on(rank, command);
      processes_.push_back(processes.start({.command = command, .environment = environment}));
    }
  }

  void wait_until_reducing() {
    for (const int process : processes_) processes.wait_for_output(process, "reducing\n", soon());
  }

  int operator[](int rank) const { return processes_[static_cast<size_t>(rank)]; }
  int count() const { return count_; }

  ProcessCluster processes;

 private:
  const int count_;
  const Hosts* const hosts_;
  std::vector<ReservedPort> ports_;  // numbers that no other test has, also where hosts are namespaces
  std::vector<int> processes_;
};

TEST(CollectiveProcesses, ReduceThroughSharedMemory) {
  Ranks ranks(3, nullptr);
  ranks.start(20, 60s);
  for (int rank = 0; rank < 3; ++rank) {
    const auto result = ranks.processes.wait(ranks[rank], soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, AllOf(HasSubstr("3 ranks on 1 hosts"), HasSubstr("all steps were right")));
  }
}

TEST(CollectiveProcesses, ReduceOverTcpWithCompressionAndSeveralSockets) {
  Ranks ranks(3, nullptr);
  ranks.start(5, 60s, {{"MUSTER_SHARED_MEMORY", "off"}, {"MUSTER_SOCKETS", "2"}, {"MUSTER_WIRE", "fp16"}});
  for (int rank = 0; rank < 3; ++rank) {
    const auto result = ranks.processes.wait(ranks[rank], soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;  // sums of small whole numbers are exact in fp16
    EXPECT_THAT(result.output, HasSubstr("3 ranks on 3 hosts"));
  }
}

TEST(CollectiveProcesses, RanksOnSeveralHostsReduceOverTheNetwork) {
  const Hosts hosts(3);
  Ranks ranks(3, &hosts);
  ranks.start(5, 60s);
  for (int rank = 0; rank < 3; ++rank) {
    const auto result = ranks.processes.wait(ranks[rank], soon());
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, AllOf(HasSubstr("3 ranks on 3 hosts"), HasSubstr("all steps were right")));
  }
}

void expect_that_the_others_name(Ranks& ranks, int victim, const std::string& error) {
  for (int rank = 0; rank < ranks.count(); ++rank) {
    if (rank == victim) continue;
    const auto result = ranks.processes.wait(ranks[rank], soon());
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_THAT(result.output, AllOf(HasSubstr(error), HasSubstr(fmt::format("worker/{} (host", victim)),
                                     HasSubstr("all_reduce(float32 x")))
        << "rank " << rank;
  }
}

void expect_that_the_others_soon_name(Ranks& ranks, int victim) {
  const auto named = Deadline::after(kNamedWithin);
  for (int rank = 0; rank < ranks.count(); ++rank) {
    if (rank != victim) ranks.processes.wait_for_output(ranks[rank], "PeerLost after", named);
  }
  expect_that_the_others_name(ranks, victim, "PeerLost");
}

TEST(CollectiveProcesses, AKilledRankIsSoonNamedByAllOthers) {
  const auto files = [] {
    const std::filesystem::directory_iterator entries("/dev/shm");
    return std::distance(begin(entries), end(entries));
  };
  const auto before = files();
  Ranks ranks(4, nullptr);
  ranks.start(1'000'000, 60s);
  ranks.wait_until_reducing();
  ranks.processes.signal(ranks[2], SIGKILL);
  expect_that_the_others_soon_name(ranks, 2);
  EXPECT_EQ(files(), before) << "nothing is left in the shared-memory file system";
}

TEST(CollectiveProcesses, AKilledRankOnAnotherHostIsSoonNamedByAllOthers) {
  const Hosts hosts(3);
  Ranks ranks(3, &hosts);
  ranks.start(1'000'000, 60s);
  ranks.wait_until_reducing();
  ranks.processes.signal_group(ranks[1], SIGKILL);
  expect_that_the_others_soon_name(ranks, 1);
}

TEST(CollectiveProcesses, AStoppedRankIsNamedAtTheDeadline) {
  Ranks ranks(3, nullptr);
  ranks.start(1'000'000, 6s, {{"MUSTER_HEARTBEAT_TIMEOUT", "60s"}});
  ranks.wait_until_reducing();
  ranks.processes.signal(ranks[1], SIGSTOP);
  expect_that_the_others_name(ranks, 1, "DeadlineExceeded");
}

TEST(CollectiveProcesses, ARankWhoseHostIsCutOffIsNamedAtTheDeadline) {
  for (const bool unplugged : {true, false}) {
    const Hosts hosts(3);
    Ranks ranks(3, &hosts);
    ranks.start(1'000'000, 6s, {{"MUSTER_HEARTBEAT_TIMEOUT", "60s"}});
    ranks.wait_until_reducing();
    if (unplugged) {
      hosts.unplug(2);
    } else {
      hosts.drop_packets(2);
    }
    expect_that_the_others_name(ranks, 2, "DeadlineExceeded");
    // It can't reach the others either.
    EXPECT_THAT(ranks.processes.wait(ranks[2], soon()).output, HasSubstr("DeadlineExceeded"));
  }
}

}  // namespace
}  // namespace muster::detail

int main(int argc, char** argv) {
  return muster::detail::testing::run_tests_with_hosts(argc, argv);
}
