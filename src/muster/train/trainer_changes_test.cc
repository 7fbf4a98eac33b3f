// What becomes of values that a program loads, moves or changes in place while a Trainer trains them: they
// are taken over, or refused with the name of the parameter.

#include <sstream>

#include "muster/base/error.h"
#include "muster/train/trainer_test.h"

namespace muster::detail {
namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;

class TrainerChanges : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(Setups, TrainerChanges,
                         ::testing::Values(Setup{1}, Setup{2}, Setup{3}, Setup{2, false}), setup_name);

// As from a file: torch::load gives the parameters other memory.
void load(Net& net, uint64_t seed) {
  Net other;
  fill(*other, seed);
  std::stringstream file;
  torch::save(other, file);
  torch::load(net, file);
}

// Each worker takes `steps` steps, with a change before each.
using Change = std::function<void(Job& job, Net& net, Trainer& trainer, int step)>;
std::vector<Tensors> train_changing(const Setup& setup, int steps, const Change& change) {
  return on_workers(setup, [&](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, optim::SGD({.lr = 0.1}));
    for (int step = 0; step < steps; ++step) {
      change(job, net, trainer, step);
      trainer.step([&] { return loss_at(net, step); }, 8);
    }
    EXPECT_EQ(trainer.steps(), steps);
    return values_of(*net);
  });
}

// What steps from `first` up to `last` make of the values of seed 50. Without momentum nothing else counts.
Tensors plain_from_50(int first, int last) {
  Net alone;
  fill(*alone, 50);
  return plain<torch::optim::SGD>(*alone, torch::optim::SGDOptions(0.1), last - first,
                                  [&](int step) { return loss_at(alone, first + step); });
}

uint64_t own_seed(const Job& job) {
  return 50 + static_cast<uint64_t>(job.rank());
}

TEST_P(TrainerChanges, LoadedValuesAreTrainedOnByAllAndAreTheChiefs) {
  const auto values = train_changing(GetParam(), 4, [](Job& job, Net& net, Trainer&, int step) {
    if (step == 2) load(net, own_seed(job));
  });
  expect_all(values, plain_from_50(2, 4));
}

TEST_P(TrainerChanges, WhatTheChiefAloneLoadsBeforeTheFirstStepReachesAll) {
  const auto values = train_changing(GetParam(), 3, [](Job& job, Net& net, Trainer&, int step) {
    if (step == 0 && job.is_chief()) load(net, 50);
  });
  expect_all(values, plain_from_50(0, 3));
}

TEST_P(TrainerChanges, WhatIsInitialisedInPlaceBeforeTheFirstStepIsTheChiefs) {
  const auto values = train_changing(GetParam(), 3, [](Job& job, Net& net, Trainer&, int step) {
    if (step == 0) fill(*net, own_seed(job));
  });
  expect_all(values, plain_from_50(0, 3));
}

TEST_P(TrainerChanges, ValuesMayBeLoadedInChangeParameters) {
  const auto values = train_changing(GetParam(), 4, [](Job&, Net& net, Trainer& trainer, int step) {
    if (step == 2) trainer.change_parameters([&] { load(net, 50); });
  });
  expect_all(values, plain_from_50(2, 4));
}

TEST_P(TrainerChanges, WhatIsDrawnInChangeParametersBeforeTheFirstStepIsTheChiefs) {
  const auto values = train_changing(GetParam(), 1, [](Job& job, Net& net, Trainer& trainer, int) {
    trainer.change_parameters([&] { fill(*net, own_seed(job)); });
  });
  expect_all(values, plain_from_50(0, 1));
}

TEST_P(TrainerChanges, AModuleThatBecomesDoubleIsTrainedAsSuch) {
  on_workers(GetParam(), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, optim::SGD({.lr = 0.1}));
    trainer.step([&] { return loss_at(net, 0); }, 8);
    net->to(torch::kFloat64);
    const auto before = net->fc1->weight.detach().clone();
    const Batch batch(8, 16);
    trainer.step(
        [&] { return torch::mse_loss(net(batch.x.to(torch::kFloat64)), batch.y.to(torch::kFloat64)); }, 8);
    EXPECT_EQ(net->fc1->weight.scalar_type(), torch::kFloat64);
    EXPECT_FALSE(before.equal(net->fc1->weight));
    return 0;
  });
}

TEST_P(TrainerChanges, ValuesThatAreLoadedBetweenTheBatchesOfAStepAreTrainedOn) {
  on_workers(GetParam(), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, optim::SGD({.lr = 0.1}), {.accumulate = 2});
    const auto step = [&](int batch) { trainer.step([&] { return loss_at(net, batch); }, 8); };
    for (int batch = 0; batch < 3; ++batch) step(batch);
    load(net, 50);
    step(3);  // the end of the step that was begun: the loaded values stay
    Net alone;
    fill(*alone, 50);
    expect_near(values_of(*net), values_of(*alone));
    step(4);
    step(5);
    expect_near(values_of(*net), plain<torch::optim::SGD>(*alone, torch::optim::SGDOptions(0.1), 1, [&](int) {
                  return (loss_at(alone, 4) + loss_at(alone, 5)) / 2;
                }));
    return 0;
  });
}

TEST(TrainerLoading, OnSomeWorkersOnlyIsAnErrorOnAll) {
  const auto errors = errors_of({3}, [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    for (int step = 0; step < 4; ++step) {
      if (step == 2 && job.is_chief()) load(net, 50);
      trainer.step([&] { return loss_at(net, step); }, 8);
    }
  });
  EXPECT_THAT(errors, Each(HasSubstr("before step 3 on 1 of 3 workers")));
}

TEST(TrainerLoading, WithParameterServersIsRefusedByName) {
  for (const auto& strategy : kServerStrategies) {
    SCOPED_TRACE(strategy);
    const auto errors = errors_of(with_server(strategy), [](Job& job) {
      Net net = net_of(job);
      Trainer trainer(job, net, sgd_rule());
      trainer.step([&] { return loss_at(net, 0); }, 8);
      load(net, 50);
      trainer.step([&] { return loss_at(net, 1); }, 8);
    });
    EXPECT_THAT(errors[0], AllOf(HasSubstr("fc"), HasSubstr("was given other memory, as by torch::load")));
  }
}

// Servers can't be reached by change_parameters(), which is not advised there.
TEST(TrainerChangesInPlace, WithParameterServersAreRefusedWithWhatHelps) {
  const auto errors = errors_of(with_server("ps-async"), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    trainer.step([&] { return loss_at(net, 0); }, 8);
    {
      const torch::NoGradGuard no_grad;
      net->fc1->weight.mul_(0.9);
    }
    trainer.step([&] { return loss_at(net, 1); }, 8);
  });
  EXPECT_THAT(errors, ::testing::Contains(AllOf(HasSubstr("the parameter fc1.weight was changed in place"),
                                                HasSubstr("make it before the Trainer is made"))));
}

TEST_P(TrainerChanges, AChangeInPlaceIsTakenOverAloneAndRefusedByNameAmongSeveral) {
  const auto errors = errors_of(GetParam(), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, optim::SGD({.lr = 0.1}));
    trainer.step([&] { return loss_at(net, 0); }, 8);
    {
      const torch::NoGradGuard no_grad;
      fill(*net, 50);
    }
    trainer.step([&] { return loss_at(net, 1); }, 8);
    Net alone;
    fill(*alone, 50);
    expect_near(values_of(*net), plain<torch::optim::SGD>(*alone, torch::optim::SGDOptions(0.1), 1,
                                                          [&](int) { return loss_at(alone, 1); }));
  });
  if (GetParam().workers == 1) {
    EXPECT_EQ(errors[0], "");
  } else {
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("the parameter fc"), HasSubstr("was changed in place"),
                                   HasSubstr("Trainer::change_parameters()"))));
  }
}

TEST(TrainerChangesInPlace, InsideAStepAndBeforeAnEvaluationAreSeenToo) {
  const auto in_step = errors_of({2}, [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    for (int step = 0; step < 2; ++step) {
      trainer.step(
          [&] {
            const torch::NoGradGuard no_grad;
            if (step == 1) net->fc2->bias.clamp_(-0.01, 0.01);
            const torch::AutoGradMode grad(true);
            return loss_at(net, step);
          },
          8);
    }
  });
  EXPECT_THAT(in_step, Each(HasSubstr("the parameter fc2.bias was changed in place")));
  const auto before_evaluation = errors_of({2}, [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    trainer.step([&] { return loss_at(net, 0); }, 8);
    {
      const torch::NoGradGuard no_grad;
      net->fc1->weight.mul_(0.9);
    }
    trainer.evaluate([](Sums&) {});
  });
  EXPECT_THAT(before_evaluation, Each(HasSubstr("the parameter fc1.weight was changed in place")));
}

// Each worker has parameters of its own there, and clips them as a critic's are clipped.
TEST_P(TrainerChanges, WithAnOptimizerOfTorchsChangesInPlaceCount) {
  expect_all(on_workers(GetParam(),
                        [](Job& job) {
                          Net net = net_of(job);
                          torch::optim::SGD optimizer(net->parameters(), 0.1);
                          Trainer trainer(job, net, optimizer);
                          for (int step = 0; step < 3; ++step) {
                            trainer.step([&] { return loss_at(net, step); }, 8);
                            const torch::NoGradGuard no_grad;
                            for (auto& parameter : net->parameters()) parameter.clamp_(-0.2, 0.2);
                          }
                          return values_of(*net);
                        }),
             [] {
               Net alone;
               fill(*alone);
               torch::optim::SGD optimizer(alone->parameters(), 0.1);
               for (int step = 0; step < 3; ++step) {
                 optimizer.zero_grad();
                 loss_at(alone, step).backward();
                 optimizer.step();
                 const torch::NoGradGuard no_grad;
                 for (auto& parameter : alone->parameters()) parameter.clamp_(-0.2, 0.2);
               }
               return values_of(*alone);
             }());
}

TEST(TrainerChangesInPlace, WithParameterServersAreRefusedByNameButForLocalSteps) {
  for (const auto& strategy : kServerStrategies) {
    SCOPED_TRACE(strategy);
    const auto errors = errors_of(with_server(strategy), [](Job& job) {
      Net net = net_of(job);
      Trainer trainer(job, net, sgd_rule());
      for (int step = 0; step < 3; ++step) {
        trainer.step([&] { return loss_at(net, step); }, 8);
        const torch::NoGradGuard no_grad;
        net->fc1->weight.mul_(0.9);
      }
      trainer.finish_epoch();
    });
    if (strategy == "ps-local") {
      EXPECT_THAT(errors, Each(""));
    } else {
      EXPECT_THAT(errors[0], HasSubstr("the parameter fc1.weight was changed in place"));
    }
  }
}

const std::vector<Setup> kTwoWorkers = {Setup{2}, Setup{2, false}};

double sum_of(const torch::nn::Module& module) {
  double sum = 0;
  for (const auto& values : values_of(module)) sum += values.to(torch::kFloat64).sum().item<double>();
  return sum;
}

TEST_P(TrainerChanges, AnEvaluationHasTheChiefsValuesAlsoWhenItAloneHasLoadedThem) {
  Net loaded;
  fill(*loaded, 50);
  for (const int steps : {0, 2}) {
    on_workers(GetParam(), [&](Job& job) {
      Net net = net_of(job);
      Trainer trainer(job, net, optim::SGD({.lr = 0.1}));
      for (int step = 0; step < steps; ++step) trainer.step([&] { return loss_at(net, step); }, 8);
      if (job.is_chief()) load(net, 50);
      const auto sums = trainer.evaluate([&](Sums& mine) { mine["all"] = sum_of(*net); });
      EXPECT_NEAR(sums.at("all"), job.size() * sum_of(*loaded), 1e-6);
      for (int step = 2; step < 4; ++step) trainer.step([&] { return loss_at(net, step); }, 8);
      expect_near(values_of(*net), plain_from_50(2, 4));
      return 0;
    });
  }
}

// A frozen weight is given other values before the step `before`, on the chief or on all workers.
std::vector<std::string> load_frozen(const Setup& setup, int before, bool on_all) {
  return errors_of(setup, [&](Job& job) {
    Net net = net_of(job);
    net->fc1->weight.set_requires_grad(false);
    Trainer trainer(job, net, sgd_rule());
    for (int step = 0; step < 4; ++step) {
      if (step == before && (on_all || job.is_chief())) net->fc1->weight.set_data(random({8, 6}, 50));
      trainer.step([&] { return loss_at(net, step); }, 8);
    }
    // A worker of servers that has not loaded may train on after the chief was refused.
    EXPECT_TRUE(setup.servers > 0 || net->fc1->weight.equal(random({8, 6}, 50)));
  });
}

TEST(TrainerLoading, OfAFrozenPartCountsLikeThatOfTheRest) {
  for (const auto& setup : kTwoWorkers) {
    EXPECT_THAT(load_frozen(setup, 0, false), Each(""));
    EXPECT_THAT(load_frozen(setup, 2, true), Each(""));
    EXPECT_THAT(load_frozen(setup, 2, false), Each(HasSubstr("before step 3 on 1 of 2 workers")));
  }
  EXPECT_THAT(load_frozen(with_server("ps-sync"), 1, false)[0],
              HasSubstr("the parameter fc1.weight was given other memory"));
}

// As in a loop to which a Trainer was added, and from which torch's optimizer was not taken.
TEST(TrainerChangesInPlace, ByAnOptimizerOfTorchsBesideTheTrainerAreRefused) {
  // With ps-sync it is the server's memory, which other processes can't write: servers_process_test has that.
  auto setups = kTwoWorkers;
  for (const char* strategy : {"ps-async", "ps-ssp"}) setups.push_back(with_server(strategy));
  for (const auto& setup : setups) {
    SCOPED_TRACE(::testing::PrintToString(setup));
    const auto errors = errors_of(setup, [](Job& job) {
      Net net = net_of(job);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      Trainer trainer(job, net, sgd_rule());
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        loss_at(net, step).backward();
        optimizer.step();
        trainer.step([&] { return loss_at(net, step); }, 8);
      }
    });
    EXPECT_THAT(errors, Contains(HasSubstr("was changed in place while a Trainer trains it")));
  }
}

}  // namespace
}  // namespace muster::detail
