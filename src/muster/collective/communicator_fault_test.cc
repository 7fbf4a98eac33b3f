// What happens when ranks do not agree, do not come, leave or die; as threads. Processes that are killed and
// hosts that are cut off are in tests/.

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <latch>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/wait_registry.h"
#include "muster/testing/rank_group.h"
#include "muster/testing/thread_cluster.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::RankGroup;
using testing::ThreadCluster;
using testing::ThreadRendezvous;

// A rank that died or left is named by all others within 3 s. On a machine that does much else at the same
// time it may take longer.
constexpr auto kNamedWithin = 15s;

// The same faults inside a host, between hosts and in a mixture.
struct Ranks {
  std::string name;
  std::vector<int> hosts;
};

void PrintTo(const Ranks& ranks, std::ostream* out) {
  *out << ranks.name;
}

// The lines that are logged while it lives.
class Log {
 public:
  Log() {
    set_log_sink([this](std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_ += line;
    });
  }
  ~Log() { set_log_sink(nullptr); }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  std::string lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  int count(const std::string& text) const {
    const std::lock_guard lock(mutex_);
    int found = 0;
    for (size_t at = lines_.find(text); at != std::string::npos; at = lines_.find(text, at + 1)) ++found;
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::string lines_;
};

class FaultTest : public ::testing::TestWithParam<Ranks> {
 protected:
  static constexpr int kRanks = 4;

  // Runs `body` on each rank and gives what each threw, with the type before it. No barrier at the end: the
  // group is broken.
  std::vector<std::string> run(const std::function<void(Communicator&)>& body,
                               Communicator::Options communicator = {}) {
    const RankGroup::Options options = {
        .ranks = kRanks, .hosts = GetParam().hosts, .communicator = std::move(communicator)};
    ThreadRendezvous rendezvous(kRanks);
    std::atomic<int> ended = 0;
    return ThreadCluster(kRanks, 60s).run([&](int rank) {
      Communicator comm(RankGroup::options_of(options, rank, rendezvous));
      std::string error;
      try {
        body(comm);
      } catch (const PeerLost& thrown) {
        error = std::string("PeerLost ") + thrown.what();
      } catch (const DeadlineExceeded& thrown) {
        error = std::string("DeadlineExceeded ") + thrown.what();
      } catch (const InvalidArgument& thrown) {
        error = std::string("InvalidArgument ") + thrown.what();
      } catch (const Aborted& thrown) {
        error = std::string("Aborted ") + thrown.what();
      }
      // Nobody leaves before all have their error: leaving is an error for the others too.
      ++ended;
      for (const auto limit = Deadline::after(30s); ended < kRanks && !limit.expired();)
        std::this_thread::sleep_for(1ms);
      if (!error.empty()) throw Error(error);
    });
  }
};

TEST_P(FaultTest, ADifferentSizeIsNamedOnAllRanks) {
  const auto errors = run([](Communicator& comm) {
    std::vector<float> data(5000);
    comm.barrier();
    comm.all_reduce(data.data(), comm.rank() == 2 ? 7 : 5000, DType::kFloat32);
  });
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("InvalidArgument"), HasSubstr("called all_reduce(float32 x 7, sum)"),
                         HasSubstr("called all_reduce(float32 x 5000, sum)"), HasSubstr("rank 2"))));
}

TEST_P(FaultTest, AMessageOfAnotherSizeIsNamedByBothSides) {
  const auto errors = run([](Communicator& comm) {
    std::vector<float> data(20);
    comm.barrier();
    if (comm.rank() == 0) comm.send(data.data(), 10, DType::kFloat32, 1);
    if (comm.rank() == 1) comm.receive(data.data(), 20, DType::kFloat32, 0);
  });
  EXPECT_THAT(errors[1], ::testing::AnyOf(AllOf(HasSubstr("called receive(float32 x 20, from rank 0)"),
                                                HasSubstr("called send(float32 x 10, to rank 1)")),
                                          HasSubstr("rank 0 sent float32 x 10")));
}

TEST_P(FaultTest, ADifferentTypeOrOperationIsNamedOnAllRanks) {
  EXPECT_THAT(run([](Communicator& comm) {
                std::vector<int64_t> data(100);
                comm.all_reduce(data.data(), 100, comm.rank() == 0 ? DType::kInt32 : DType::kInt64);
              }),
              Each(AllOf(HasSubstr("InvalidArgument"), HasSubstr("int32 x 100"), HasSubstr("int64 x 100"))));
  EXPECT_THAT(run([](Communicator& comm) {
                std::vector<float> data(100);
                comm.all_reduce(data.data(), 100, DType::kFloat32,
                                comm.rank() == 3 ? ReduceOp::kMax : ReduceOp::kMin);
              }),
              Each(AllOf(HasSubstr("InvalidArgument"), HasSubstr("max"), HasSubstr("min"))));
}

TEST_P(FaultTest, ADifferentCollectiveIsNamedOnAllRanks) {
  const auto errors = run([](Communicator& comm) {
    std::vector<float> in(40);
    std::vector<float> out(40);
    if (comm.rank() == 1) {
      comm.broadcast(in.data(), 10, DType::kFloat32, 0);
    } else {
      comm.all_gather(in.data(), out.data(), 10, DType::kFloat32);
    }
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("InvalidArgument"), HasSubstr("broadcast(float32 x 10, root 0)"),
                                 HasSubstr("all_gather(float32 x 10)"))));
}

TEST_P(FaultTest, ARankThatDoesNotComeIsNamedAtTheDeadlineAndTheGroupIsBroken) {
  const auto errors = run([](Communicator& comm) {
    comm.barrier();
    if (comm.rank() == 1) comm.wait_broken(Deadline::after(60s));  // until the others have given up
    std::vector<float> data(100'000);
    const auto try_it = [&] {
      comm.all_reduce(data.data(), data.size(), DType::kFloat32, ReduceOp::kSum, Deadline::after(500ms));
    };
    if (comm.rank() != 1) {
      EXPECT_THROW(try_it(), DeadlineExceeded);
      EXPECT_THROW(comm.barrier(), DeadlineExceeded) << "later operations throw the same";
    }
    try_it();
  });
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("DeadlineExceeded"), HasSubstr("rank 1"), HasSubstr("did not come"))));
  EXPECT_THAT(errors[0], HasSubstr("all_reduce(float32 x 100000, sum) number"));
}

TEST_P(FaultTest, ARankThatLeavesIsNamedSoon) {
  const RankGroup::Options options = {.ranks = kRanks, .hosts = GetParam().hosts, .communicator = {}};
  ThreadRendezvous rendezvous(kRanks);
  Deadline::Clock::time_point left;
  std::array<Deadline::Clock::time_point, kRanks> named{};
  const auto errors = ThreadCluster(kRanks, 60s).run([&](int rank) {
    auto comm = std::make_unique<Communicator>(RankGroup::options_of(options, rank, rendezvous));
    comm->barrier();
    if (rank == 3) {
      comm.reset();
      left = Deadline::Clock::now();
      return;
    }
    // The others may leave before us, for the same reason.
    try {
      comm->barrier();
    } catch (const PeerLost&) {
      named[static_cast<size_t>(rank)] = Deadline::Clock::now();
      throw;
    }
  });
  EXPECT_EQ(errors[3], "");
  for (int rank = 0; rank < 3; ++rank) EXPECT_LT(named[static_cast<size_t>(rank)] - left, kNamedWithin);
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_THAT(errors[static_cast<size_t>(rank)], HasSubstr("has left the group"));
}

TEST_P(FaultTest, AnAbortReachesEveryPendingAndLaterOperation) {
  std::atomic<int> waiting = 0;  // in an operation that the first does not come to
  const auto errors = run([&](Communicator& comm) {
    std::thread watching;
    if (comm.rank() == 0) {
      while (waiting < comm.size() - 1) std::this_thread::sleep_for(1ms);
      comm.abort("no more disk");
    } else {
      watching = std::thread([&] {
        while (comm.history().find("all_reduce") == std::string::npos) std::this_thread::sleep_for(1ms);
        ++waiting;
      });
    }
    std::vector<float> data(1000);
    std::exception_ptr error;
    try {
      comm.all_reduce(data.data(), data.size(), DType::kFloat32);
    } catch (...) {
      error = std::current_exception();
    }
    if (watching.joinable()) watching.join();
    if (error) std::rethrow_exception(error);
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("Aborted"), HasSubstr("no more disk"))));
}

TEST_P(FaultTest, AnAbortAfterADeadlineDoesNotHideWhoDidNotCome) {
  std::latch gave_up(1);
  const auto errors = run([&](Communicator& comm) {
    comm.barrier();
    if (comm.rank() == 0) {
      EXPECT_THROW(comm.barrier(Deadline::after(500ms)), DeadlineExceeded);
      gave_up.count_down();
    } else {
      // As when the coordinator is quicker than the ranks' own connections.
      gave_up.wait();
      comm.abort("the job has ended");
    }
    comm.barrier();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("DeadlineExceeded"), HasSubstr("did not come"))));
}

TEST_P(FaultTest, AStallIsToldWithWhoIsMissingAndTheLastOperationsAreLogged) {
  const Log log;
  WaitRegistry waits;
  const auto waits_for_the_last = [&] {
    return std::ranges::any_of(waits.waits(), [](const Wait& wait) {
      const WaitFor& what = wait.wait_for;
      return what.what == "all_reduce(float32 x 1000, sum) number 2 of world" &&
             std::ranges::count(what.tasks, "worker/2") == 1;
    });
  };
  const auto errors = run(
      [&](Communicator& comm) {
        comm.barrier();
        if (comm.rank() == 2) {
          const auto limit = Deadline::after(60s);
          while (!(waits_for_the_last() && log.count("the last operations of rank 0 of world") > 0) &&
                 !limit.expired())
            std::this_thread::sleep_for(10ms);
          EXPECT_FALSE(limit.expired());
        }
        std::vector<float> data(1000);
        comm.all_reduce(data.data(), data.size(), DType::kFloat32);
        comm.barrier();
      },
      {.stall_warning = 200ms, .waits = &waits, .tasks = {"worker/0", "worker/1", "worker/2", "worker/3"}});
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(log.lines(), AllOf(HasSubstr("the last operations of rank 0 of world: 1 barrier: done, began"),
                                 HasSubstr("; 2 all_reduce(float32 x 1000, sum): running, began")));
  EXPECT_THAT(waits.waits(), ::testing::IsEmpty());
}

TEST_P(FaultTest, ADeadlineIsLoggedOnceWithTheLastOperations) {
  const Log log;
  const auto errors = run([](Communicator& comm) {
    std::vector<float> data(100);
    for (int i = 0; i < 20; ++i) comm.all_reduce(data.data(), data.size(), DType::kFloat32);
    if (comm.rank() == 1) comm.wait_broken(Deadline::after(60s));  // until the others have given up
    EXPECT_THROW(comm.barrier(Deadline::after(500ms)), DeadlineExceeded);
    EXPECT_THROW(comm.barrier(), DeadlineExceeded);
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(log.lines(), HasSubstr("the last operations of rank 0 of world: 14 all_reduce("));
  EXPECT_THAT(log.lines(), HasSubstr("; 21 barrier: running, began"));
  for (int rank = 0; rank < kRanks; ++rank)
    EXPECT_EQ(log.count(fmt::format("the last operations of rank {} of world", rank)), 1);
}

INSTANTIATE_TEST_SUITE_P(Native, FaultTest,
                         ::testing::Values(Ranks{"memory", {}}, Ranks{"tcp", {0, 1, 2, 3}},
                                           Ranks{"mixed", {0, 0, 1, 1}}),
                         [](const auto& ranks) { return ranks.param.name; });

TEST(Communicator, MistakesAreErrors) {
  const auto errors = RankGroup({.ranks = 2}).run([](Communicator& comm) {
    float value = 0;
    EXPECT_THROW(comm.broadcast(&value, 1, DType::kFloat32, 2), InvalidArgument);
    EXPECT_THROW(comm.broadcast(&value, 1, DType::kFloat32, -1), InvalidArgument);
    EXPECT_THROW(comm.send(&value, 1, DType::kFloat32, comm.rank()), InvalidArgument);
    EXPECT_THROW(comm.all_reduce(nullptr, 1, DType::kFloat32), InvalidArgument);
    comm.all_reduce(&value, 1, DType::kFloat32);  // a mistake breaks nothing
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THROW(Communicator({.rank = 2, .size = 2}), InvalidArgument);
  EXPECT_THROW(Communicator({.wire_dtype = DType::kInt8}), InvalidArgument);
}

TEST(Communicator, AFullArenaSaysSo) {
  const auto errors =
      RankGroup({.ranks = 2, .communicator = {.arena_capacity = 4 << 20}}).run([](Communicator& comm) {
        const auto some = comm.allocate(1 << 20);
        try {
          comm.allocate(8 << 20);
          ADD_FAILURE() << "no error";
        } catch (const SystemError& error) {
          EXPECT_THAT(error.what(), AllOf(HasSubstr("the arena is full"), HasSubstr("8 MiB wanted")));
        }
        comm.all_reduce(some.get(), 1000, DType::kFloat32);
      });
  EXPECT_THAT(errors, Each(""));
}

TEST(Communicator, RanksThatOnlySeemToBeOnOneHostUseTcp) {
  ThreadRendezvous rendezvous(3);
  const auto errors = ThreadCluster(3, 60s).run([&](int rank) {
    Communicator::Options options = RankGroup::options_of({.ranks = 3}, rank, rendezvous);
    if (rank == 0) {  // it says that it is on the same host, but nobody can reach it there
      options.rendezvous = [inner = options.rendezvous, name = options.endpoint->local_name()](
                               std::string mine, Deadline deadline) {
        const auto at = mine.find(name);
        if (at != std::string::npos) mine.replace(at, name.size(), "muster-nowhere");
        return inner(mine, deadline);
      };
    }
    Communicator comm(options);
    EXPECT_EQ(comm.topology().hosts(), 3);
    float value = 1;
    comm.all_reduce(&value, 1, DType::kFloat32);
    EXPECT_EQ(value, 3);
    comm.barrier();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Communicator, AWrongSecretIsRefused) {
  ThreadRendezvous rendezvous(2);
  const auto errors = ThreadCluster(2, 60s).run([&](int rank) {
    Communicator::Options options = RankGroup::options_of({.ranks = 2, .hosts = {0, 1}}, rank, rendezvous);
    options.endpoint = std::make_shared<Endpoint>(Endpoint::Options{.secret = rank == 0 ? "right" : "wrong"});
    options.rendezvous_timeout = 2s;
    const Communicator comm(options);
  });
  EXPECT_THAT(errors[1], HasSubstr("secret"));
  EXPECT_NE(errors[0], "");
}

TEST(Communicator, ARankMayLeaveWhileOthersStillTakeTheResult) {
  for (const int ranks : {2, 3}) {
    for (int repetition = 0; repetition < 50; ++repetition) {
      ThreadRendezvous rendezvous(ranks);
      const auto errors = ThreadCluster(ranks, 60s).run([&](int rank) {
        std::vector<float> data(200'000, 1);
        {
          Communicator comm(RankGroup::options_of({.ranks = ranks}, rank, rendezvous));
          comm.all_reduce(data.data(), data.size(), DType::kFloat32);
        }
        for (const float value : data) ASSERT_EQ(value, static_cast<float>(ranks));
      });
      ASSERT_THAT(errors, Each(""));
    }
  }
}

int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

// Private memory, mappings and threads of this process.
struct Usage {
  size_t resident_kib = 0;
  size_t mappings = 0;
  size_t threads = 0;

  static Usage now() {
    Usage usage;
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      if (word == "RssAnon:" || word == "RssShmem:") {
        size_t kib = 0;
        status >> kib;
        usage.resident_kib += kib;
      } else if (word == "Threads:") {
        status >> usage.threads;
      }
    }
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) ++usage.mappings;
    return usage;
  }
};

TEST(Communicator, TenThousandCyclesLeakNothing) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int kCycles = 300;  // a sanitizer keeps memory of its own, and finds leaks in its own way
#else
  constexpr int kCycles = 10'000;
#endif
  ThreadRendezvous rendezvous(2);
  Usage before;
  int descriptors = 0;
  const auto errors = ThreadCluster(2, 300s).run([&](int rank) {
    const auto endpoint = std::make_shared<Endpoint>(Endpoint::Options{.secret = "test"});
    for (int cycle = 0; cycle < kCycles; ++cycle) {
      if (cycle == kCycles / 10 && rank == 0) {
        before = Usage::now();
        descriptors = open_descriptors();
      }
      Communicator::Options options =
          RankGroup::options_of({.ranks = 2, .communicator = {.endpoint = endpoint}}, rank, rendezvous);
      if (cycle % 10 == 9) options.host_identity = fmt::format("host {}", rank);  // over TCP
      Communicator comm(options);
      float value = 1;
      comm.all_reduce(&value, 1, DType::kFloat32);
      EXPECT_EQ(value, 2);
      if (cycle % 50 == 0) {
        const auto split = comm.split(0);
        split->all_reduce(&value, 1, DType::kFloat32);
        const auto memory = comm.allocate(1 << 20);
        comm.all_reduce(memory.get(), 1 << 18, DType::kFloat32);
      }
      comm.barrier();
    }
    rendezvous.of_rank(rank)("", Deadline::after(60s));
    if (rank == 0) {
      EXPECT_NEAR(open_descriptors(), descriptors, 20);
      EXPECT_NEAR(static_cast<double>(Usage::now().mappings), static_cast<double>(before.mappings), 60);
      EXPECT_LE(Usage::now().threads, before.threads + 4);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
      EXPECT_LT(Usage::now().resident_kib, before.resident_kib + 8 * 1024);
#endif
    }
    rendezvous.of_rank(rank)("", Deadline::after(60s));
  });
  EXPECT_THAT(errors, Each(""));
}

// A rank that meets the others and then never connects: whoever waits for it hears of an abort, and says whom
// it waits for.
TEST(ConnectingRanks, AWaitForARankThatDoesNotConnectIsToldOfAndHearsAnAbort) {
  WaitRegistry waits;
  std::string waited_for;
  int looks = 0;
  Communicator::Options options = {
      .rank = 0,
      .size = 2,
      .rendezvous =
          [](const std::string& mine, Deadline) {
            return std::vector<std::string>{mine, mine};
          },
      .endpoint = std::make_shared<Endpoint>(Endpoint::Options{.secret = "test"}),
      .rendezvous_timeout = 60s,
      .waits = &waits,
      .tasks = {"worker/0", "worker/1"}};
  options.check = [&] {
    look_at_wait();
    for (const auto& wait : waits.waits()) {
      if (!wait.wait_for.tasks.empty()) waited_for = wait.wait_for.tasks.front();
    }
    if (++looks > 200 || !waited_for.empty()) throw Aborted("somebody ended the job");
  };
  EXPECT_THROW(Communicator{options}, Aborted);
  EXPECT_EQ(waited_for, "worker/1");
}

}  // namespace
}  // namespace muster::detail
