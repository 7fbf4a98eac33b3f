#include "muster/train/all_reduce_strategy.h"

#include <cmath>
#include <cstring>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/optim/rules.h"
#include "muster/testing/rank_group.h"

namespace muster::detail {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RankGroup;
using Floats = std::vector<float>;

// One larger than a chunk, several small ones.
std::vector<ParameterInfo> some_parameters() {
  return {{"c", {70'001}}, {"b", {3, 5}}, {"a", {17}}};
}

float gradient_at(int rank, int step, size_t parameter, size_t i) {
  // Mixed by hand: a generator a value takes most of the time of these tests under a sanitizer.
  auto mixed = static_cast<uint32_t>(1 + i * 7919 + parameter * 104'729 + static_cast<size_t>(step) * 31 +
                                     static_cast<size_t>(rank) * 1'299'709);
  mixed = (mixed ^ (mixed >> 16U)) * 0x85EB'CA6BU;
  mixed = (mixed ^ (mixed >> 13U)) * 0xC2B2'AE35U;
  return static_cast<float>(mixed >> 8U) * 0x1p-23F - 1;  // from -1 to 1
}

AllReduceStrategy::Options options_of(Communicator& comm, UpdateRulePtr rule) {
  return {.communicator = comm,
          .parameters = some_parameters(),
          .rule = std::move(rule),
          .bucket_bytes = size_t{64} * 1024,
          .describe = [](int rank) { return "worker " + std::to_string(rank); }};
}

/// A worker whose gradients are those of gradient_at().
class Worker {
 public:
  Worker(Communicator& comm, AllReduceStrategy::Options options)
      : comm_(comm), strategy_(std::move(options)) {
    if (strategy_.initialises()) {
      for (size_t p = 0; p < layout().size(); ++p) {
        for (size_t i = 0; i < layout()[p].count(); ++i) parameter(p)[i] = gradient_at(99, 0, p, i);
      }
    }
    strategy_.adopt_parameters();
  }

  const FlatLayout& layout() const { return strategy_.layout(); }
  float* parameter(size_t p) {
    return reinterpret_cast<float*>(strategy_.parameters().get() + layout().offset(p));
  }
  AllReduceStrategy& strategy() { return strategy_; }

  /// Delivers those parameters for which `has` holds.
  template <typename Has>
  StepResult step(int number, double weight, const Has& has) {
    // The rate of the chief counts.
    strategy_.begin({.weight = weight, .total = weight, .lr = comm_.rank() == 0 ? 0.1 : 7});
    gradients_.assign(layout().size(), {});
    for (size_t p = 0; p < layout().size(); ++p) {
      if (weight == 0 || !has(p)) continue;
      for (size_t i = 0; i < layout()[p].count(); ++i)
        gradients_[p].push_back(gradient_at(comm_.rank(), number, p, i));
      strategy_.deliver(p, gradients_[p].data(), false);
    }
    return strategy_.finish(10.0 * comm_.rank());
  }
  StepResult step(int number) {
    return step(number, 1, [](size_t) { return true; });
  }

  std::vector<Floats> parameters() {
    std::vector<Floats> all;
    for (size_t p = 0; p < layout().size(); ++p)
      all.emplace_back(parameter(p), parameter(p) + layout()[p].count());
    return all;
  }

 private:
  Communicator& comm_;
  AllReduceStrategy strategy_;
  std::vector<Floats> gradients_;
};

// What the parameters should be after `steps` steps of `ranks` workers: gradients added up in the order of
// the workers, then one plain update.
std::vector<Floats> reference(const UpdateRule& rule, int ranks, int steps) {
  const auto parameters = some_parameters();
  std::vector<Floats> all;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const size_t count = parameters[p].count();
    Floats values(count);
    for (size_t i = 0; i < count; ++i) values[i] = gradient_at(99, 0, p, i);
    std::vector<Floats> states(kMostStates, Floats(count));
    for (int step = 0; step < steps; ++step) {
      Floats sum(count);
      for (size_t i = 0; i < count; ++i) {
        sum[i] = gradient_at(0, step, p, i);
        for (int rank = 1; rank < ranks; ++rank) sum[i] += gradient_at(rank, step, p, i);
      }
      UpdateRange range = {.parameter = values.data(), .gradient = sum.data(), .count = count};
      for (size_t state = 0; state < kMostStates; ++state) range.states[state] = states[state].data();
      const UpdateNow now = {.step = step + 1,
                             .lr = 0.1,
                             .gradient_scale = 1.0 / ranks,
                             .adapt = parameters[p].shape.size() > 1};
      const Norms norms = rule.measures() ? rule.measure(range, now) : Norms{};
      rule.apply(range, now, norms);
    }
    all.push_back(values);
  }
  return all;
}

double worst_difference(const std::vector<Floats>& a, const std::vector<Floats>& b) {
  double worst = 0;
  for (size_t p = 0; p < a.size(); ++p) {
    for (size_t i = 0; i < a[p].size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(a[p][i]) - b[p][i]));
  }
  return worst;
}

class AllReduceStrategyOn : public ::testing::TestWithParam<std::vector<int>> {
 protected:
  int ranks() const { return static_cast<int>(GetParam().size()); }
  bool one_host() const { return GetParam() == std::vector<int>(GetParam().size(), 0); }

  /// Runs `body` on all ranks; whatever they find goes into `results`, which must be equal.
  std::vector<Floats> run(const std::function<std::vector<Floats>(Communicator&)>& body) const {
    std::mutex mutex;
    std::vector<std::vector<Floats>> results;
    const auto errors = RankGroup({.ranks = ranks(), .hosts = GetParam()}).run([&](Communicator& comm) {
      auto mine = body(comm);
      const std::lock_guard lock(mutex);
      results.push_back(std::move(mine));
    });
    EXPECT_THAT(errors, Each(""));
    for (const auto& result : results) EXPECT_EQ(result, results.front());
    return results.empty() ? std::vector<Floats>{} : results.front();
  }
};

TEST_P(AllReduceStrategyOn, TheUpdateIsThatOfTheAverageOnAllWorkers) {
  for (const auto& rule : {sgd({.lr = 0.1, .momentum = 0.9}), adam({}), lamb({}), lars({.lr = 0.1})}) {
    const auto found = run([&](Communicator& comm) {
      Worker worker(comm, options_of(comm, rule));
      for (int step = 0; step < 4; ++step) {
        const StepResult result = worker.step(step);
        EXPECT_TRUE(result.applied);
        EXPECT_FALSE(result.finished);
        EXPECT_DOUBLE_EQ(result.total, comm.size());
        EXPECT_DOUBLE_EQ(result.loss, 10.0 * (comm.size() - 1) / 2);
      }
      comm.barrier();
      return worker.parameters();
    });
    const auto expected = reference(*rule, ranks(), 4);
    if (one_host() && !rule->measures()) {
      EXPECT_EQ(found, expected) << rule->name() << ": not the bits of the plain form";
    } else {
      EXPECT_LT(worst_difference(found, expected), 1e-6) << rule->name();
    }
  }
}

TEST_P(AllReduceStrategyOn, RepetitionsGiveTheSameBits) {
  const auto once = [&] {
    return run([&](Communicator& comm) {
      Worker worker(comm, options_of(comm, adam({})));
      for (int step = 0; step < 3; ++step) worker.step(step);
      comm.barrier();
      return worker.parameters();
    });
  };
  EXPECT_EQ(once(), once());
}

TEST_P(AllReduceStrategyOn, AParameterWithoutGradientOnSomeWorkersIsAveragedWithZeros) {
  const auto found = run([&](Communicator& comm) {
    Worker worker(comm, options_of(comm, sgd({.lr = 0.1})));
    worker.step(0, 1, [&](size_t p) { return p != 1 || comm.rank() == 0; });
    comm.barrier();
    return worker.parameters();
  });
  for (size_t i = 0; i < 15; ++i) {
    const double expected = gradient_at(99, 0, 1, i) - 0.1 * gradient_at(0, 0, 1, i) / ranks();
    EXPECT_NEAR(found[1][i], expected, 1e-6);
  }
}

TEST_P(AllReduceStrategyOn, AParameterWithoutGradientOnAllWorkersStaysAsItIs) {
  const auto found = run([&](Communicator& comm) {
    Worker worker(comm, options_of(comm, sgd({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1})));
    worker.step(0);
    comm.barrier();
    const auto before = worker.parameters();
    comm.barrier();
    worker.step(1, 1, [](size_t p) { return p != 1; });
    comm.barrier();
    EXPECT_EQ(worker.parameters()[1], before[1]);
    EXPECT_EQ(worker.strategy().updates(1), 1);
    EXPECT_EQ(worker.strategy().updates(0), 2);
    return worker.parameters();
  });
  EXPECT_FALSE(found.empty());
}

TEST_P(AllReduceStrategyOn, WorkersWithoutDataDoNotCountAndTheEndIsSeenByAll) {
  const auto found = run([&](Communicator& comm) {
    Worker worker(comm, options_of(comm, sgd({.lr = 0.1})));
    const bool last = comm.rank() == comm.size() - 1;  // has one batch, of double size
    const StepResult result = worker.step(0, last ? 2 : 0, [](size_t) { return true; });
    EXPECT_FALSE(result.finished);
    EXPECT_DOUBLE_EQ(result.loss, 10.0 * (comm.size() - 1));
    EXPECT_TRUE(worker.step(1, 0, [](size_t) { return true; }).finished);
    const StepResult again = worker.step(2, comm.rank() + 1, [](size_t) { return true; });
    EXPECT_DOUBLE_EQ(again.total, comm.size() * (comm.size() + 1) / 2.0);
    comm.barrier();
    return worker.parameters();
  });
  double sum = 0;
  for (int rank = 0; rank < ranks(); ++rank) sum += (rank + 1) * gradient_at(rank, 2, 2, 5);
  const double expected = gradient_at(99, 0, 2, 5) - 0.1 * gradient_at(ranks() - 1, 0, 2, 5) -
                          0.1 * sum / (ranks() * (ranks() + 1) / 2.0);
  EXPECT_NEAR(found[2][5], expected, 1e-6);
}

TEST_P(AllReduceStrategyOn, TheGradientIsClippedToItsNorm) {
  const auto found = run([&](Communicator& comm) {
    auto options = options_of(comm, sgd({.lr = 0.1}));
    options.clip_norm = 0.5;
    Worker worker(comm, std::move(options));
    EXPECT_GT(worker.step(0).gradient_norm, 0.5);
    comm.barrier();
    return worker.parameters();
  });
  double squares = 0;
  for (size_t p = 0; p < found.size(); ++p) {
    for (size_t i = 0; i < found[p].size(); ++i) {
      const double step = (gradient_at(99, 0, p, i) - static_cast<double>(found[p][i])) / 0.1;
      squares += step * step;
    }
  }
  EXPECT_NEAR(std::sqrt(squares), 0.5, 1e-3);
}

TEST_P(AllReduceStrategyOn, AnInfiniteGradientLeavesTheParametersAloneOnAllWorkers) {
  run([&](Communicator& comm) {
    auto options = options_of(comm, adam({}));
    options.check_finite = true;
    Worker worker(comm, std::move(options));
    const auto before = worker.parameters();
    comm.barrier();
    Floats bad(70'001, 1.0F);
    if (comm.rank() == comm.size() - 1) bad[69'000] = INFINITY;
    worker.strategy().begin({.weight = 1, .total = 1, .lr = 0.1});
    worker.strategy().deliver(0, bad.data(), false);
    EXPECT_FALSE(worker.strategy().finish(0).applied);
    EXPECT_EQ(worker.parameters(), before);
    comm.barrier();
    EXPECT_TRUE(worker.step(1).applied);
    comm.barrier();
    return worker.parameters();
  });
}

TEST_P(AllReduceStrategyOn, OtherTypesAreTrainedInTheirPrecision) {
  run([&](Communicator& comm) {
    auto options = options_of(comm, sgd({.lr = 0.5, .momentum = 0.5}));
    options.parameters = {{"double", {40'000}, DType::kFloat64}, {"brain", {1000}, DType::kBFloat16}};
    AllReduceStrategy strategy(std::move(options));
    const auto& layout = strategy.layout();
    auto* doubles = reinterpret_cast<double*>(strategy.parameters().get());
    auto* brains = reinterpret_cast<BFloat16*>(strategy.parameters().get() + layout.offset(1));
    if (strategy.initialises()) {
      for (size_t i = 0; i < 1000; ++i) brains[i] = to_bfloat16(256);
    }
    strategy.adopt_parameters();
    const std::vector<double> wide(40'000, 1e-12);
    const std::vector<BFloat16> narrow(1000, to_bfloat16(0.5F));
    for (int step = 0; step < 4; ++step) {
      strategy.begin({.weight = 1, .total = 1, .lr = 0.5});
      strategy.deliver(0, wide.data(), false);
      strategy.deliver(1, narrow.data(), false);
      strategy.finish(0);
    }
    comm.barrier();
    // Steps of 1, 1.5, 1.75 and 1.875 gradients.
    EXPECT_NEAR(doubles[39'999], -0.5e-12 * 6.125, 1e-26);
    // bfloat16 has steps of 1 at 256: without a copy in float32, no update would have any effect.
    EXPECT_EQ(to_float(brains[999]), 254.0F);  // 256 - 0.5 * 0.5 * 6.125 = 254.47
    return std::vector<Floats>{};
  });
}

INSTANTIATE_TEST_SUITE_P(Hosts, AllReduceStrategyOn,
                         ::testing::Values(std::vector<int>{0}, std::vector<int>{0, 0},
                                           std::vector<int>{0, 0, 0}, std::vector<int>{0, 0, 0, 0},
                                           std::vector<int>{0, 1}, std::vector<int>{0, 1, 2},
                                           std::vector<int>{0, 0, 1}),
                         [](const auto& instance) {
                           std::string name = "Workers";
                           for (const int host : instance.param) name += std::to_string(host);
                           return name;
                         });

TEST(AllReduceStrategy, SharedUpdatesHaveTheBitsOfTheFormWithoutSharedMemory) {
  const auto train = [](bool shared) {
    std::mutex mutex;
    std::vector<Floats> result;
    RankGroup::Options options = {.ranks = 2};
    options.communicator.shared_memory = shared;
    const auto errors = RankGroup(options).run([&](Communicator& comm) {
      Worker worker(comm, options_of(comm, adam({})));
      for (int step = 0; step < 5; ++step) worker.step(step);
      comm.barrier();
      const std::lock_guard lock(mutex);
      result = worker.parameters();
    });
    EXPECT_THAT(errors, Each(""));
    return result;
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(AllReduceStrategy, AHeldParameterDoesNotChangeBeforeAllBackwardPassesHaveEnded) {
  const auto errors = RankGroup({.ranks = 2}).run([](Communicator& comm) {
    Worker worker(comm, options_of(comm, sgd({.lr = 0.1})));
    const Floats gradient(70'001, 1.0F);
    const float before = worker.parameter(0)[0];
    worker.strategy().begin({.weight = 1, .total = 1, .lr = 0.1});
    worker.strategy().deliver(0, gradient.data(), /*held=*/comm.rank() == 1);
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the other one waits in finish()
      EXPECT_EQ(worker.parameter(0)[0], before);
    }
    worker.strategy().finish(0);
    EXPECT_NE(worker.parameter(0)[0], before);
    comm.barrier();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(AllReduceStrategy, AHangNamesTheWorkerAndWhatItHasNotDelivered) {
  for (const auto& hosts : {std::vector<int>{0, 0}, std::vector<int>{0, 0, 1}}) {
    const int ranks = static_cast<int>(hosts.size());
    const auto errors = RankGroup({.ranks = ranks, .hosts = hosts}).run([](Communicator& comm) {
      auto options = options_of(comm, sgd({.lr = 0.1}));
      options.timeout = std::chrono::seconds(4);  // also for the step before, on a slow machine
      options.stall_warning = std::chrono::milliseconds(100);
      Worker worker(comm, std::move(options));
      worker.step(0);
      if (comm.rank() != 1) {
        worker.step(1);
        return;
      }
      const Floats gradient(70'001, 1.0F);
      worker.strategy().begin({.weight = 1, .total = 1, .lr = 0.1});
      worker.strategy().deliver(0, gradient.data(), false);
      comm.wait_broken(Deadline::after(std::chrono::minutes(1)));  // until the others give up
      comm.check("hanging");
    });
    EXPECT_THAT(errors[0], HasSubstr("worker 1 has not delivered b, a to step 2"));
    EXPECT_THAT(errors[1], HasSubstr("worker 1 has not delivered b, a to step 2"));
    EXPECT_THAT(errors, Each(Not("")));
  }
}

// sgd, but from its third step on an update of one worker lasts until the group is broken.
class HangingRule : public UpdateRule {
 public:
  explicit HangingRule(Communicator& comm) : comm_(comm) {}
  const char* name() const override { return inner_->name(); }
  std::string to_string() const override { return inner_->to_string(); }
  double lr() const override { return inner_->lr(); }
  size_t states() const override { return inner_->states(); }
  bool apply(const UpdateRange& range, const UpdateNow& now, const Norms& norms) const override {
    const bool finite = inner_->apply(range, now, norms);
    if (comm_.rank() != 1 || now.step < 3) return finite;
    comm_.wait_broken(Deadline::after(std::chrono::minutes(1)));
    comm_.check("hanging");
    return finite;
  }

 private:
  Communicator& comm_;
  const UpdateRulePtr inner_ = sgd({.lr = 0.1});
};

TEST(AllReduceStrategy, AWorkerThatHangsInTheUpdateIsNamed) {
  const auto errors = RankGroup({.ranks = 2}).run([](Communicator& comm) {
    auto options = options_of(comm, std::make_shared<HangingRule>(comm));
    options.timeout = std::chrono::seconds(4);  // also for the steps before, on a slow machine
    options.stall_warning = std::chrono::milliseconds(100);
    Worker worker(comm, std::move(options));
    for (int step = 0; step < 100; ++step) worker.step(step);
  });
  EXPECT_THAT(errors[0], HasSubstr("worker 1 has not ended its share of the update in step"));
  EXPECT_THAT(errors[1], HasSubstr("worker 1 has not ended its share of the update in step"));
}

TEST(AllReduceStrategy, AWorkerThatLeavesIsNamed) {
  const auto errors = RankGroup({.ranks = 3}).run([](Communicator& comm) {
    Worker worker(comm, options_of(comm, sgd({.lr = 0.1})));
    worker.step(0);
    if (comm.rank() == 2) throw std::runtime_error("done with it");
    worker.step(1);
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 2"));
  EXPECT_THAT(errors[1], HasSubstr("rank 2"));
}

TEST(AllReduceStrategy, AChangeOfTheModelOnSomeWorkersOnlyIsAnErrorOnAll) {
  for (const auto& hosts : {std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 1}}) {
    const auto errors = RankGroup({.ranks = 3, .hosts = hosts}).run([](Communicator& comm) {
      Worker worker(comm, options_of(comm, sgd({.lr = 0.1})));
      worker.step(0);
      worker.strategy().begin({.changed = true});
      EXPECT_TRUE(worker.strategy().finish(0).changed);
      if (comm.rank() == 1) {
        worker.strategy().begin({.changed = true});
        worker.strategy().finish(0);
      } else {
        worker.step(1);
      }
    });
    EXPECT_THAT(errors, Each(HasSubstr("before step 2 on 1 of 3 workers")));
  }
}

}  // namespace
}  // namespace muster::detail
