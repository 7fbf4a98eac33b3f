// Workers that wait for each other in different places: where that can't end it is an error on all at once,
// which says who waits where for whom; where a rule can avoid it, it does not happen.

#include <atomic>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "muster/base/log.h"
#include "muster/communicator.h"
#include "muster/train/trainer_test.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::Net;

testing::Setup soon_said(const std::string& strategy) {
  return {.workers = 2, .servers = strategy == "allreduce" ? 0 : 1, .configure = [=](Config& config) {
            config.strategy = strategy;
            config.stall_warning = 1s;
          }};
}

// A job, and a model that it trains.
struct Training {
  explicit Training(Job& its_job, const TrainerOptions& options = {})
      : job(its_job), trainer(its_job, net, optim::SGD({.lr = 0.1}), options) {}
  void step() {
    trainer.step([this] { return testing::loss_at(net, 0); }, 8);
  }

  Job& job;
  Net net = [] {
    Net made;
    testing::fill(*made);
    return made;
  }();
  Trainer trainer;
};

// Ways to wait for the others, each with how the message calls it.
struct Place {
  const char* name;
  const char* said;
  void (*wait)(Training&);
};

const std::vector<Place> kPlaces = {
    {"Barrier", "waits in barrier 'a'", [](Training& it) { it.job.barrier("a"); }},
    {"OtherBarrier", "waits in barrier 'b'", [](Training& it) { it.job.barrier("b"); }},
    {"Gather", "waits in gather 'c'", [](Training& it) { it.job.gather("c", "value"); }},
    {"Get", "waits in get of 'k'", [](Training& it) { it.job.get("k"); }},
    {"Collective", "waits in all_reduce(float32 x 1, sum) number",
     [](Training& it) {
       float value = 1;
       it.job.communicator().all_reduce(&value, 1, DType::kFloat32);
     }},
    {"Step", "waits in step 2", [](Training& it) { it.step(); }},
    {"Evaluate", "waits in evaluate()",
     [](Training& it) { it.trainer.evaluate([](Sums& sums) { sums["n"] = 1; }); }},
    {"FinishEpoch", "waits in finish_epoch()", [](Training& it) { it.trainer.finish_epoch(); }},
    {"AnotherTrainer", "waits in the Trainer's constructor", [](Training& it) { Training another(it.job); }},
};

// With parameter servers: nobody waits for the gradients of a worker that waits at the coordinator.
bool end_by_rule(const std::string& one, const std::string& other) {
  const auto at_server = [](const std::string& name) { return name == "Step" || name == "FinishEpoch"; };
  if (at_server(one) == at_server(other)) return at_server(one);
  return one != "Collective" && other != "Collective";
}

// With all-reduce some of these are collectives, which are compared as soon as two ranks differ.
bool is_collective(const std::string& name) {
  return name == "Collective" || name == "Evaluate" || name == "AnotherTrainer";
}

bool ends(const std::string& strategy, const std::string& one, const std::string& other) {
  if (strategy == "allreduce") return one == "Step" && other == "FinishEpoch";  // which takes part in it
  return end_by_rule(one, other);
}

// A strategy and the first of two places. All others are tried with it at the same time, by jobs of their
// own.
using Param = std::tuple<std::string, size_t>;

std::vector<Param> params(const std::vector<std::string>& strategies, bool that_end) {
  std::vector<Param> found;
  for (const auto& strategy : strategies) {
    for (size_t i = 0; i < kPlaces.size(); ++i) {
      bool any = false;
      for (size_t j = i + 1; j < kPlaces.size(); ++j)
        any = any || ends(strategy, kPlaces[i].name, kPlaces[j].name) == that_end;
      if (any) found.emplace_back(strategy, i);
    }
  }
  return found;
}

std::string name_of(const ::testing::TestParamInfo<Param>& tested) {
  std::string name = std::get<0>(tested.param) + "_" + kPlaces[std::get<1>(tested.param)].name;
  std::ranges::replace(name, '-', '_');
  return name;
}

class WaitsForEachOther : public ::testing::TestWithParam<Param> {
 protected:
  const std::string& strategy() const { return std::get<0>(GetParam()); }

  template <typename Try>
  void with_each_other(bool that_ends, const Try& attempt) {
    const size_t at = std::get<1>(GetParam());
    const Place& first = kPlaces[at];
    std::vector<std::thread> jobs;
    for (size_t i = at + 1; i < kPlaces.size(); ++i) {
      const Place& second = kPlaces[i];
      if (ends(strategy(), first.name, second.name) == that_ends)
        jobs.emplace_back([&] { attempt(first, second); });
    }
    for (auto& job : jobs) job.join();
  }
};

class Deadlocks : public WaitsForEachOther {};

TEST_P(Deadlocks, AreAnErrorOnAllThatSaysWhoWaitsWhere) {
  with_each_other(/*that_ends=*/false, [this](const Place& first, const Place& second) {
    const auto errors = testing::errors_of(soon_said(strategy()), [&](Job& job) {
      job.communicator();
      Training training(job);
      training.step();
      (job.rank() == 0 ? first : second).wait(training);
    });
    const std::string one = fmt::format("worker/0 {}", first.said);
    const std::string other = fmt::format("worker/1 {}", second.said);
    for (size_t worker = 0; worker < 2; ++worker) {
      if (strategy() == "allreduce" && is_collective(first.name) && is_collective(second.name)) {
        EXPECT_THAT(errors[worker], AnyOf(HasSubstr(" called all_"), HasSubstr("the same calls")))
            << second.name;
      } else {
        EXPECT_THAT(errors[worker], AllOf(HasSubstr("deadlock: "), HasSubstr(one), HasSubstr(other)));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Places, Deadlocks, ::testing::ValuesIn(params({"allreduce", "ps-sync"}, false)),
                         name_of);

class NoDeadlocks : public WaitsForEachOther {};

// Afterwards each goes where the other has been.
TEST_P(NoDeadlocks, WhereServersCountOnNobodyWhoWaitsElsewhere) {
  with_each_other(/*that_ends=*/true, [this](const Place& first, const Place& second) {
    const auto errors = testing::errors_of(soon_said(strategy()), [&](Job& job) {
      Training training(job);
      training.step();
      const Place& mine = job.rank() == 0 ? first : second;
      const Place& theirs = job.rank() == 0 ? second : first;
      mine.wait(training);
      if (std::string(first.name) == "Get") job.put("k", "v");
      theirs.wait(training);
    });
    EXPECT_THAT(errors, Each("")) << first.name << " and " << second.name;
  });
}

INSTANTIATE_TEST_SUITE_P(Places, NoDeadlocks, ::testing::ValuesIn(params(testing::kServerStrategies, true)),
                         name_of);

// Each waits for the other's gradient of another model.
TEST(DeadlocksOf, SeveralModelsAreNamed) {
  const auto errors = testing::errors_of(soon_said("ps-sync"), [&](Job& job) {
    Training one(job);
    Training other(job);
    (job.rank() == 0 ? one : other).step();
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("worker/0 waits in step 1 for a gradient of worker/1"),
                               HasSubstr("worker/1 waits in step 1 for a gradient of worker/0")));
  EXPECT_THAT(errors, Each(HasSubstr("deadlock")));
}

// Each worker is a host of its own, so that a step waits for sums that come over links.
TEST(DeadlocksOf, AStepBetweenHostsIsNamed) {
  auto setup = soon_said("allreduce");
  setup.shared_memory = false;
  const auto errors = testing::errors_of(setup, [&](Job& job) {
    Training training(job);
    training.step();
    if (job.rank() == 0) {
      training.step();
    } else {
      job.barrier("a");
    }
  });
  // The other may hear first that the first one has left the group.
  EXPECT_THAT(errors,
              Contains(AllOf(HasSubstr("deadlock"), HasSubstr("worker/0 waits in step 2 for worker/1"),
                             HasSubstr("worker/1 waits in barrier 'a'"))));
}

// A wait that comes to its limit is not the end of the program: the servers count on the worker again.
TEST(Limits, AWorkerTrainsOnAfterAWaitThatCameToItsLimit) {
  for (const auto& strategy : testing::kServerStrategies) {
    const auto errors = testing::errors_of(soon_said(strategy), [&](Job& job) {
      Training training(job);
      for (int i = 0; i < 3; ++i) {
        training.step();
        EXPECT_THROW(job.get("never", 300ms), DeadlineExceeded);
      }
      training.step();
      training.trainer.finish_epoch();
    });
    EXPECT_THAT(errors, Each("")) << strategy;
  }
}

// The thread that carries it out waits for the others, and the job's own waits for that thread.
TEST(DeadlocksOf, AnOperationInFlightAgainstABarrier) {
  const auto errors = testing::errors_of(soon_said("allreduce"), [&](Job& job) {
    Communicator& workers = job.communicator();
    float value = 1;
    if (job.is_chief()) {
      Work work = workers.all_reduce_async(&value, 1, DType::kFloat32);
      while (workers.history().empty()) std::this_thread::sleep_for(1ms);  // that thread has it
      work.wait();
    } else {
      job.barrier("a");
    }
  });
  EXPECT_THAT(errors,
              Contains(AllOf(HasSubstr("deadlock"), HasSubstr("worker/0 waits in all_reduce(float32 x 1"),
                             HasSubstr("worker/1 waits in barrier 'a'"))));
}

// A straggler is no deadlock, and neither is one that computes for longer than the warning.
TEST(DeadlocksOf, NobodyWhereSomebodyMerelyComputes) {
  for (const std::string strategy : {"allreduce", "ps-sync"}) {
    const auto errors = testing::errors_of(soon_said(strategy), [&](Job& job) {
      Training training(job);
      training.step();
      if (job.rank() == 1) std::this_thread::sleep_for(4s);  // computes
      training.step();
      job.barrier("end");
    });
    EXPECT_THAT(errors, Each(""));
  }
}

// Worker 1 dies and begins again, when the others have only their evaluation left to do.
TEST(Restarts, AWorkerThatIsStartedAgainTrainsWhileTheOthersWaitInEvaluate) {
  for (const auto& strategy : testing::kServerStrategies) {
    std::latch again(2);
    double tested = 0;
    const auto train = [&](Job& job) {
      Training training(job);
      for (int epoch = 0; epoch < 2; ++epoch) {
        for (int i = 0; i < 3; ++i) training.step();
        training.trainer.finish_epoch();
      }
      if (job.is_chief()) again.arrive_and_wait();
      const auto sums = training.trainer.evaluate([](Sums& mine) { mine["tested"] = 1; });
      if (job.is_chief()) tested = sums.at("tested");
    };
    const testing::TestCluster cluster(soon_said(strategy));
    const auto errors = testing::ThreadCluster(3, 110s).run([&](int task) {
      Config config = cluster.config_of(task);
      if (task == 1) {
        Job first(config);
        Training(first).step();
      }  // which does not take its leave
      config.restart_count = task == 1 ? 1 : 0;
      testing::run_task(config, [&](Job& job) {
        if (!job.is_chief()) again.arrive_and_wait();
        train(job);
      });
    });
    EXPECT_THAT(errors, Each("")) << strategy;
    EXPECT_EQ(tested, 2) << strategy;
  }
}

// Worker 1 dies with the second model, and begins again with the first, which all have left.
TEST(Restarts, AWorkerThatComesTooLateForAModelIsToldSo) {
  std::atomic<bool> is_over = false;
  set_log_sink([&](std::string_view line) {
    if (line.find("model 1: trained to step") != std::string_view::npos) is_over = true;
  });
  std::latch is_refused(1);
  auto setup = soon_said("ps-async");
  setup.configure = [configure = setup.configure](Config& config) {
    configure(config);
    config.log_level = LogLevel::kInfo;
  };
  const testing::TestCluster cluster(setup);
  const auto errors = testing::ThreadCluster(3, 110s).run([&](int task) {
    Config config = cluster.config_of(task);
    if (task == 1) {
      {
        Job first(config);
        Training(first).step();
        Training(first).step();
      }  // which does not take its leave
      while (!is_over) std::this_thread::sleep_for(1ms);
      config.restart_count = 1;
    }
    testing::run_task(config, [&](Job& job) {
      if (job.is_chief()) {
        Training(job).step();
        const Training second(job);
        return is_refused.wait();
      }
      const std::shared_ptr<void> done(nullptr, [&](void*) { is_refused.count_down(); });
      const Training late(job);
    });
  });
  set_log_sink(nullptr);
  EXPECT_THAT(errors[1], HasSubstr("have trained model 1 of the program to its end"));
}

}  // namespace
}  // namespace muster::detail
