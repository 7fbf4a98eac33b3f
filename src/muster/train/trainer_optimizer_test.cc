// A Trainer with an optimizer of torch's, and with groups of parameters.

#include <algorithm>

#include "muster/error.h"
#include "muster/train/trainer_test.h"

namespace muster::detail {
namespace {

using namespace muster::detail::testing;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kSteps = 8;
constexpr int64_t kRows = 12;  // of a step, of all workers

Batch part_of(int step, const Job& job) {
  const int64_t mine = kRows / job.size();
  const int64_t begin = step * kRows + job.rank() * mine;
  return {begin, begin + mine};
}

Batch all_of(int step) {
  return {step * kRows, (step + 1) * kRows};
}

Setup with_strategy(const std::string& strategy, int servers) {
  return {.servers = servers, .configure = [=](Config& config) { config.strategy = strategy; }};
}

class TrainerOptimizer : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(, TrainerOptimizer,
                         ::testing::Values(Setup{.workers = 1}, Setup{.workers = 2}, Setup{.workers = 3},
                                           Setup{.workers = 2, .shared_memory = false}),
                         setup_name);

// Trains with an optimizer of torch's that `make` gives.
template <typename Make>
std::vector<Tensors> train_with_torch(const Setup& setup, const Make& make,
                                      const TrainerOptions& options = {}) {
  return on_workers(setup, [&](Job& job) {
    Net net = net_of(job);
    auto optimizer = make(net->parameters());
    Trainer trainer(job, net, optimizer, options);
    for (int step = 0; step < kSteps; ++step) {
      const Batch batch = part_of(step, job);
      trainer.step([&] { return loss_of(net, batch); }, batch.size());
    }
    EXPECT_EQ(trainer.steps(), kSteps);
    return values_of(*net);
  });
}

template <typename Make>
Tensors plain_with_torch(const Make& make) {
  Net net;
  fill(*net);
  auto optimizer = make(net->parameters());
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(net, all_of(step)).backward();
    optimizer.step();
  }
  return values_of(*net);
}

std::vector<Tensors> train_fused(const Setup& setup, const optim::Optimizer& optimizer,
                                 const TrainerOptions& options = {}) {
  return on_workers(setup, [&](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, optimizer, options);
    for (int step = 0; step < kSteps; ++step) {
      const Batch batch = part_of(step, job);
      trainer.step([&] { return loss_of(net, batch); }, batch.size());
    }
    return values_of(*net);
  });
}

TEST_P(TrainerOptimizer, ATorchOptimizerStepsAsTheFusedOneDoes) {
  const auto sgd = [](std::vector<Tensor> parameters) {
    return torch::optim::SGD(std::move(parameters),
                             torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  };
  expect_all(train_with_torch(GetParam(), sgd), plain_with_torch(sgd));
  expect_all(train_fused(GetParam(), optim::SGD({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01})),
             train_with_torch(GetParam(), sgd).front(), 1e-6);
  const auto adamw = [](std::vector<Tensor> parameters) {
    return torch::optim::AdamW(std::move(parameters), torch::optim::AdamWOptions(0.01));
  };
  expect_all(train_fused(GetParam(), optim::AdamW({.lr = 0.01})), train_with_torch(GetParam(), adamw).front(),
             1e-6);
}

// A user's own, with options that tell no rate.
struct SignOptions : torch::optim::OptimizerCloneableOptions<SignOptions> {};
class SignDescent : public torch::optim::Optimizer {
 public:
  explicit SignDescent(std::vector<Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<SignOptions>()) {}
  Tensor step(LossClosure /*closure*/ = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      for (auto& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        parameter.mutable_grad().sign_();  // in place, as an optimizer may
        parameter.add_(parameter.grad(), -0.01);
      }
    }
    return {};
  }
};

TEST_P(TrainerOptimizer, AnOptimizerOfTheUsersWillDo) {
  const auto own = [](std::vector<Tensor> parameters) { return SignDescent(std::move(parameters)); };
  expect_all(train_with_torch(GetParam(), own), plain_with_torch(own));
}

// A parameter that is not dense, one that no worker uses at first, and one that is frozen on the way.
TEST_P(TrainerOptimizer, OddParametersWorkWithATorchOptimizer) {
  struct Odd : torch::nn::Module {
    Odd() {
      wide = register_parameter("wide", random({6, 8}, 5).slice(1, 2, 5));
      late = register_parameter("late", random({3}, 6));
      frozen = register_parameter("frozen", random({3}, 7));
    }
    Tensor loss(const Batch& batch, int step) {
      Tensor y = batch.x.matmul(wide) + frozen;
      if (step >= 2) y = y * late;
      return torch::mse_loss(y, batch.y);
    }
    Tensor wide, late, frozen;
  };
  const auto train = [](Odd& net, int step, const auto& take) {
    if (step == 4) net.frozen.requires_grad_(false);
    take();
  };
  const torch::optim::SGDOptions options = torch::optim::SGDOptions(0.05).momentum(0.9);
  Odd expected;
  ASSERT_FALSE(expected.wide.is_non_overlapping_and_dense());
  torch::optim::SGD plain(expected.parameters(), options);
  for (int step = 0; step < kSteps; ++step) {
    train(expected, step, [&] {
      for (auto& parameter : expected.parameters()) parameter.mutable_grad().reset();
      expected.loss(all_of(step), step).backward();
      plain.step();
    });
  }
  const auto found = on_workers(GetParam(), [&](Job& job) {
    Odd net;
    torch::optim::SGD optimizer(net.parameters(), options);
    Trainer trainer(job, net, optimizer);
    for (int step = 0; step < kSteps; ++step) {
      train(net, step, [&] {
        const Batch batch = part_of(step, job);
        trainer.step([&] { return net.loss(batch, step); }, batch.size());
      });
    }
    return values_of(net);
  });
  expect_all(found, values_of(expected));
}

TEST_P(TrainerOptimizer, BatchesAreAccumulatedForATorchOptimizer) {
  const auto sgd = [](std::vector<Tensor> parameters) {
    return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9));
  };
  const auto found = on_workers(GetParam(), [&](Job& job) {
    Net net = net_of(job);
    auto optimizer = sgd(net->parameters());
    Trainer trainer(job, net, optimizer, {.accumulate = 2});
    for (int step = 0; step < 2 * kSteps; ++step) {
      const Batch batch = part_of(step, job);
      trainer.step([&] { return loss_of(net, batch); }, batch.size());
    }
    return values_of(*net);
  });
  Net net;
  fill(*net);
  expect_all(found, plain_sgd(*net, kSteps, [&](int step) {
               return loss_of(net, {2 * step * kRows, 2 * (step + 1) * kRows});
             }));
}

// The chief has no data in the first epoch: its schedule must know how far the others have come.
TEST_P(TrainerOptimizer, TheScheduleGoesOnForAWorkerWithoutData) {
  if (GetParam().workers == 1) return;
  on_workers(GetParam(), [](Job& job) {
    Net net = net_of(job);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
    {
      Trainer trainer(
          job, net, optimizer,
          {.samples_per_epoch = 3 * kRows * (job.size() - 1), .schedule = step_decay(epochs(1), 0.5)});
      for (int step = 0; step < 3 && !job.is_chief(); ++step)
        trainer.step([&] { return loss_of(net, all_of(step)); }, kRows);
      trainer.finish_epoch();
      EXPECT_DOUBLE_EQ(trainer.position().epochs(), 1);
      trainer.step([&] { return loss_of(net, all_of(3)); }, kRows);
      EXPECT_EQ(trainer.position().samples, kRows * (3 * (job.size() - 1) + job.size()));
      EXPECT_DOUBLE_EQ(optimizer.param_groups()[0].options().get_lr(), 0.05);
    }
    EXPECT_DOUBLE_EQ(optimizer.param_groups()[0].options().get_lr(), 0.1);  // as it was
    return 0;
  });
}

TEST_P(TrainerOptimizer, AScheduleAndClippingWorkWithATorchOptimizerToo) {
  const auto sgd = [](std::vector<Tensor> parameters) {
    return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.1));
  };
  const TrainerOptions options = {.schedule = step_decay(samples(3 * kRows), 0.5), .clip_norm = 0.3};
  expect_all(train_with_torch(GetParam(), sgd, options),
             train_fused(GetParam(), optim::SGD({.lr = 0.1}), options).front(), 1e-6);
}

TEST_P(TrainerOptimizer, WorkersWithoutDataTakePartWithATorchOptimizer) {
  const auto found = on_workers(GetParam(), [](Job& job) {
    Net net = net_of(job);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    Trainer trainer(job, net, optimizer);
    for (int step = 0; step < 2 + (job.is_chief() ? 3 : 0); ++step)
      trainer.step([&] { return loss_of(net, all_of(step)); }, kRows);
    trainer.finish_epoch();
    EXPECT_EQ(trainer.steps(), 5);
    return values_of(*net);
  });
  Net net;
  fill(*net);
  expect_all(found, plain_sgd(*net, 5, [&](int step) { return loss_of(net, all_of(step)); }));
}

TEST(TrainerOptimizerErrors, AreNamed) {
  EXPECT_THAT(errors_of(with_strategy("ps-sync", 1),
                        [](Job& job) {
                          Net net = net_of(job);
                          torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
                          Trainer trainer(job, net, optimizer);
                        })
                  .front(),
              HasSubstr("--strategy allreduce"));
  EXPECT_THAT(errors_of({},
                        [](Job& job) {
                          Net net = net_of(job);
                          Net other;
                          torch::optim::SGD optimizer(other->parameters(), torch::optim::SGDOptions(0.1));
                          Trainer trainer(job, net, optimizer);
                        }),
              Each(HasSubstr("[8, 6] that is not the module's")));
  const auto error_of = [](const auto& make, const TrainerOptions& options = {}) {
    return errors_of({}, [&](Job& job) {
      Net net = net_of(job);
      auto optimizer = make(job, net->parameters());
      Trainer trainer(job, net, optimizer, options);
    });
  };
  EXPECT_THAT(error_of([](Job&, std::vector<Tensor> parameters) {
                return torch::optim::LBFGS(std::move(parameters));
              }),
              Each(HasSubstr("LBFGS")));
  EXPECT_THAT(
      error_of([](Job&, std::vector<Tensor> parameters) { return SignDescent(std::move(parameters)); },
               {.schedule = constant_rate()}),
      Each(HasSubstr("no get_lr() and set_lr()")));
  // The workers' optimizers differ.
  EXPECT_THAT(error_of([](Job& job, std::vector<Tensor> parameters) {
                return torch::optim::SGD(std::move(parameters),
                                         torch::optim::SGDOptions(0.1 * (1 + job.rank())));
              }),
              Each(HasSubstr("rate 0.2")));
  EXPECT_THAT(error_of([](Job& job, std::vector<Tensor> parameters) {
                return torch::optim::AdamW(std::move(parameters),
                                           torch::optim::AdamWOptions(0.1).weight_decay(0.1 * job.rank()));
              }),
              Each(HasSubstr("the chief has weight_decay=0, it has weight_decay=0.1")));
}

TEST(TrainerOptimizerErrors, AnOptimizerWithoutParametersAndARateThatTwoSetAreRefused) {
  EXPECT_THAT(errors_of({},
                        [](Job& job) {
                          Net net = net_of(job);
                          torch::optim::SGD optimizer(std::vector<Tensor>{}, torch::optim::SGDOptions(0.1));
                          const Trainer trainer(job, net, optimizer);
                        }),
              Each(HasSubstr("the optimizer has no parameters")));
  EXPECT_THAT(errors_of({},
                        [](Job& job) {
                          Net net = net_of(job);
                          torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
                          torch::optim::StepLR scheduler(optimizer, 2, 0.1);
                          Trainer trainer(job, net, optimizer, {.schedule = constant_rate()});
                          for (int step = 0; step < 4; ++step) {
                            trainer.step([&] { return loss_at(net, step); }, 8);
                            scheduler.step();
                          }
                        }),
              ::testing::Contains(HasSubstr("which TrainerOptions::schedule would undo")));
}

TEST(TrainerOptimizerGroups, OneThatIsAddedLaterFollowsTheSchedule) {
  on_workers({}, [](Job& job) {
    Net net = net_of(job);
    torch::optim::SGD optimizer(net->fc1->parameters(), torch::optim::SGDOptions(0.1));
    Trainer trainer(job, net, optimizer, {.schedule = linear_decay(samples(1000))});
    trainer.step([&] { return loss_at(net, 0); }, 8);
    optimizer.add_param_group(torch::optim::OptimizerParamGroup(
        net->fc2->parameters(), std::make_unique<torch::optim::SGDOptions>(0.5)));
    for (int step = 1; step < 3; ++step) trainer.step([&] { return loss_at(net, step); }, 8);
    const double first = optimizer.param_groups()[0].options().get_lr();
    EXPECT_LT(first, 0.1);
    EXPECT_NEAR(optimizer.param_groups()[1].options().get_lr(), 5 * first, 1e-12);
    return 0;
  });
}

// Groups, against torch's own.

std::vector<ParameterGroup> groups_of(Net& net) {
  return {{.names = {"*.bias"}, .weight_decay = 0},
          {.parameters = net->fc2->parameters(), .lr = 0.02},
          {.names = {"fc1.weight"}, .frozen = true}};
}

Tensors plain_groups() {
  Net net;
  fill(*net);
  const auto group = [](std::vector<Tensor> parameters, double lr, double weight_decay) {
    return torch::optim::OptimizerParamGroup(
        std::move(parameters), std::make_unique<torch::optim::SGDOptions>(
                                   torch::optim::SGDOptions(lr).momentum(0.9).weight_decay(weight_decay)));
  };
  torch::optim::SGD optimizer(
      std::vector<torch::optim::OptimizerParamGroup>{group({net->fc1->bias, net->fc2->bias}, 0.1, 0),
                                                     group({net->fc2->weight}, 0.02, 0.1)},
      torch::optim::SGDOptions(0.1));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(net, all_of(step)).backward();
    optimizer.step();
  }
  return values_of(*net);
}

class TrainerGroups : public ::testing::TestWithParam<std::pair<std::string, int>> {};
INSTANTIATE_TEST_SUITE_P(, TrainerGroups,
                         ::testing::Values(std::pair("allreduce", 0), std::pair("ps-sync", 1),
                                           std::pair("ps-sync", 2)),
                         [](const auto& tried) {
                           std::string name = tried.param.first + std::to_string(tried.param.second);
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(TrainerGroups, HaveRatesAndWeightDecaysOfTheirOwn) {
  const auto found = on_workers(with_strategy(GetParam().first, GetParam().second), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, optim::SGD({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}),
                    {.groups = groups_of(net)});
    EXPECT_FALSE(net->fc1->weight.requires_grad());
    for (int step = 0; step < kSteps; ++step) {
      const Batch batch = part_of(step, job);
      trainer.step([&] { return loss_of(net, batch); }, batch.size());
    }
    trainer.finish_epoch();
    return values_of(*net);
  });
  expect_all(found, plain_groups());
}

TEST(TrainerGroupErrors, AreNamed) {
  const auto error_of = [](const ParameterGroup& group, double lr = 0.1) {
    return errors_of({.workers = 1},
                     [&](Job& job) {
                       Net net = net_of(job);
                       Trainer trainer(job, net, optim::SGD({.lr = lr}), {.groups = {group}});
                     })
        .front();
  };
  EXPECT_THAT(
      error_of({.names = {"fc1*", "conv*"}, .lr = 1}),
      HasSubstr("groups[0] names 'conv*', but no parameter of the module is called so; they are fc1.weight"));
  EXPECT_THAT(error_of({.names = {"fc1*"}, .parameters = {torch::zeros(3)}}),
              HasSubstr("groups[0].parameters[0] is no parameter of the module"));
  EXPECT_THAT(errors_of({.workers = 1},
                        [](Job& job) {
                          Net net = net_of(job);
                          Trainer trainer(
                              job, net, optim::SGD({.lr = 0.1}),
                              {.groups = {{.names = {"fc*"}, .lr = 1}, {.names = {"fc1*"}, .lr = 2}}});
                        })
                  .front(),
              HasSubstr("groups[1] has no parameter of the module that no earlier group has"));
  EXPECT_THAT(error_of({.names = {"fc1*"}, .lr = -1}),
              HasSubstr("groups[0] has a rate or a weight decay that is negative"));
  EXPECT_THAT(error_of({.names = {"fc1*"}, .lr = 1}, 0), HasSubstr("but the optimizer's is 0"));
  // All workers must have the same.
  EXPECT_THAT(errors_of({},
                        [](Job& job) {
                          Net net = net_of(job);
                          Trainer trainer(
                              job, net, optim::SGD({.lr = 0.1}),
                              {.groups = {{.names = {"fc1.bias"}, .lr = 0.1 * (1 + job.rank())}}});
                        })
                  .front(),
              HasSubstr("group of fc1.bias"));
}

}  // namespace
}  // namespace muster::detail
