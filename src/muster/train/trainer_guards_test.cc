// What a Trainer refuses, or does without, so that nobody trains in vain: gradients that are no numbers,
// modules and batches with nothing in them, options that differ, a module that is gone, a step in a step.

#include <array>
#include <limits>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/train/trainer_test.h"

namespace muster::detail {
namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;

class TrainerGuards : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(Setups, TrainerGuards,
                         ::testing::Values(Setup{1}, Setup{2}, Setup{3}, Setup{2, false}), setup_name);

const std::vector<Setup> kLossScaleSetups = {Setup{1}, Setup{2}, Setup{2, false}, with_server("ps-sync"),
                                             with_server("ps-async")};

TEST_P(TrainerGuards, AGradientThatIsNotANumberStopsAllAndNamesWorkerParameterAndStep) {
  const std::vector<std::pair<optim::Optimizer, TrainerOptions>> ways = {
      {sgd_rule(), {}},  // an update in one pass, and in several
      {sgd_rule(), {.clip_norm = 1}},
      {optim::Adam(), {}},
      {optim::LARS(), {}},
      {optim::LAMB(), {}}};
  for (const auto& [rule, options] : ways) {
    SCOPED_TRACE(rule.to_string());
    const auto errors = errors_of(GetParam(), [&](Job& job) {
      Net net = net_of(job);
      Trainer trainer(job, net, rule, options);
      for (int step = 0; step < 4; ++step) {
        const bool broken = step == 2 && job.rank() == job.size() - 1;
        trainer.step([&] { return loss_at(net, step) + (broken ? kNan : 0.0) * net->fc2->bias.sum(); }, 8);
      }
    });
    EXPECT_THAT(errors,
                Each(AllOf(HasSubstr("the gradient of fc2.bias from"),
                           HasSubstr(fmt::format("worker/{}", GetParam().workers - 1)),
                           HasSubstr("is infinite or not a number, in step 3"), HasSubstr("--on-nan skip"))));
  }
}

TEST_P(TrainerGuards, AGradientThatIsNotANumberMayBeLeftOut) {
  auto setup = GetParam();
  setup.configure = [](Config& config) { config.on_nan = "skip"; };
  Net alone;
  fill(*alone);
  const auto expected =
      plain_sgd(*alone, 4, [&](int step) { return step == 2 ? Tensor() : loss_at(alone, step); });
  expect_all(on_workers(setup,
                        [](Job& job) {
                          Net net = net_of(job);
                          Trainer trainer(job, net, sgd_rule());
                          for (int step = 0; step < 4; ++step) {
                            const double factor = step == 2 && job.is_chief() ? kNan : 1;
                            trainer.step([&] { return loss_at(net, step) * factor; }, 8);
                          }
                          EXPECT_EQ(trainer.metrics().skipped, 1);
                          return values_of(*net);
                        }),
             expected);
}

TEST(TrainerNan, WithParameterServersNamesTheWorkerToo) {
  for (const auto& strategy : kServerStrategies) {
    SCOPED_TRACE(strategy);
    const auto errors = errors_of(with_server(strategy), [](Job& job) {
      Net net = net_of(job);
      Trainer trainer(job, net, sgd_rule());
      for (int step = 0; step < 4; ++step) {
        const bool broken = step == 2 && job.rank() == 1;
        trainer.step([&] { return loss_at(net, step) + (broken ? kNan : 0.0) * net->fc2->bias.sum(); }, 8);
      }
      trainer.finish_epoch();
    });
    EXPECT_THAT(errors[1], AllOf(HasSubstr("the gradient of fc2.bias from worker/1"),
                                 HasSubstr("is infinite or not a number")));
    EXPECT_THAT(errors[0], HasSubstr("from worker/1"));
  }
}

TEST(TrainerNan, ALossScaleThatCantGetSmallerStopsTraining) {
  for (const auto& setup : kLossScaleSetups) {
    const auto errors = errors_of(setup, [](Job& job) {
      Net net = net_of(job);
      Trainer trainer(job, net, sgd_rule(), {.loss_scale = 8});
      for (int step = 0; step < 50; ++step)
        trainer.step([&] { return loss_at(net, 0) * (job.is_chief() ? kNan : 1); }, 8);
      trainer.finish_epoch();
    });
    EXPECT_THAT(errors[0], AllOf(HasSubstr("from worker/0"), HasSubstr("is infinite or not a number")));
  }
}

TEST(TrainerNan, OfTwoHostsEachNamesItsOwnOrSaysThatTheOthersDo) {
  const auto errors = errors_of({3, false}, [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    for (int step = 0; step < 3; ++step)
      trainer.step([&] { return loss_at(net, step) * (step == 1 && job.rank() > 0 ? kNan : 1.0); }, 8);
  });
  EXPECT_THAT(errors, Each(AnyOf(HasSubstr("from worker/1"), HasSubstr("from worker/2"),
                                 HasSubstr("a gradient of several other workers"))));
}

TEST(TrainerNan, WithAnOptimizerOfTorchsIsNamedToo) {
  const auto errors = errors_of({2}, [](Job& job) {
    Net net = net_of(job);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Trainer trainer(job, net, optimizer, {.accumulate = 2});
    for (int batch = 0; batch < 6; ++batch) {
      const bool broken = batch == 2 && job.rank() == 1;
      trainer.step([&] { return loss_at(net, batch) + (broken ? kNan : 0.0) * net->fc2->bias.sum(); }, 8);
    }
  });
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("the gradient of fc2.bias from worker/1"), HasSubstr("in step 2"))));
}

TEST(TrainerRefuses, AModuleWithoutParameters) {
  struct Forgetful : torch::nn::Module {
    torch::nn::Linear fc{3, 2};
  };
  const auto errors = errors_of({2}, [](Job& job) {
    Forgetful net;
    const Trainer trainer(job, net, sgd_rule());
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("has no parameters"), HasSubstr("register_module()"))));
}

TEST(TrainerRefuses, ANegativeNumberOfSamplesAndGoesOnAfterIt) {
  Job job(Config{});
  Net net;
  Trainer trainer(job, net, sgd_rule());
  try {
    trainer.step([&] { return loss_at(net, 0); }, -8);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("was given -8 samples"));
  }
  EXPECT_TRUE(trainer.step([&] { return loss_at(net, 0); }, 8));
}

TEST_P(TrainerGuards, ABatchOfNoSamplesIsNoStep) {
  Net alone;
  fill(*alone);
  const auto expected = plain_sgd(*alone, 3, [&](int step) { return loss_at(alone, step); });
  expect_all(on_workers(GetParam(),
                        [](Job& job) {
                          Net net = net_of(job);
                          Trainer trainer(job, net, sgd_rule());
                          for (int step = 0; step < 3; ++step) {
                            if (step == 1 && job.is_chief()) {
                              EXPECT_TRUE(trainer.step([&] { return loss_of(net, {0, 0}); }, 0));
                            }
                            trainer.step([&] { return loss_at(net, step); }, 8);
                          }
                          trainer.finish_epoch();
                          EXPECT_EQ(trainer.steps(), 3);
                          EXPECT_FALSE(std::isnan(trainer.metrics().loss));
                          return values_of(*net);
                        }),
             expected);
}

TEST(TrainerRefuses, OptionsThatDifferAndNamesTheFirst) {
  const auto error = [](const optim::Optimizer& chiefs, const optim::Optimizer& others) {
    const auto errors = errors_of({2}, [&](Job& job) {
      Net net = net_of(job);
      const Trainer trainer(job, net, job.is_chief() ? chiefs : others);
    });
    EXPECT_EQ(errors[0], errors[1]);
    return errors[0];
  };
  EXPECT_THAT(
      error(optim::SGD({.lr = 0.1}), optim::SGD({.lr = 0.1, .weight_decay = 0.5})),
      AllOf(HasSubstr("worker/1"), HasSubstr("the chief has weight_decay=0, it has weight_decay=0.5")));
  EXPECT_THAT(error(optim::SGD({.lr = 0.1, .momentum = 0.9}), optim::SGD({.lr = 0.1})),
              HasSubstr("the chief has momentum=0.9, it has momentum=0"));
  EXPECT_THAT(error(optim::SGD({.lr = 0.1}), optim::SGD({.lr = 0.2})),
              HasSubstr("the chief has lr=0.1, it has lr=0.2"));
}

TEST(TrainerRefuses, AStepWithinAStep) {
  Job job(Config{});
  Net net;
  Trainer trainer(job, net, sgd_rule());
  try {
    trainer.step([&] {
      trainer.step([&] { return loss_at(net, 0); }, 8);
      return loss_at(net, 0);
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("while one of its steps or evaluations runs"));
  }
}

TEST(TrainerRefuses, ToGoOnWithAModuleThatIsGone) {
  Job job(Config{});
  auto net = std::make_unique<NetImpl>();
  Trainer trainer(job, *net, sgd_rule());
  for (int step = 0; step < 3; ++step)
    trainer.step([&] { return net->forward(Batch(0, 8).x).square().mean(); }, 8);
  trainer.evaluate([](Sums&) {});
  net.reset();
  const auto refused = [](const auto& call) {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("the module that this Trainer trains has been destroyed"));
    }
  };
  refused([&] { trainer.evaluate([](Sums&) {}); });
  refused([&] { trainer.step([&] { return torch::ones({1}, torch::requires_grad()).sum(); }, 8); });
}

TEST(TrainerRefuses, AModuleThatItDoesNotKeepWhenItsPointersAreGone) {
  Job job(Config{});
  auto net = std::make_shared<NetImpl>();
  const auto parameters = net->parameters();  // these live on
  Trainer trainer(job, *net, sgd_rule());
  net.reset();
  try {
    trainer.step([] { return torch::ones({1}, torch::requires_grad()).sum(); }, 8);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("the module that this Trainer trains has been destroyed"));
  }
}

TEST(TrainerKeeps, AModuleOnTheStackWhoseTrainedPartIsReplaced) {
  struct Tower : torch::nn::Module {
    Tower() {
      register_module("body", body);
      register_module("head", head);
      for (auto& parameter : body->parameters()) parameter.set_requires_grad(false);
    }
    torch::nn::Linear body{6, 8};
    torch::nn::Linear head{8, 3};
  };
  Job job(Config{});
  Tower net;
  Trainer trainer(job, net, sgd_rule());
  const auto step = [&] {
    trainer.step([&] { return net.head(net.body(Batch(0, 8).x)).square().mean(); }, 8);
  };
  step();
  net.head = net.replace_module("head", torch::nn::Linear(8, 3));
  const auto before = net.head->weight.detach().clone();
  step();
  EXPECT_FALSE(before.equal(net.head->weight));
}

TEST(TrainerKeeps, AModuleThatItWasGivenAPointerTo) {
  Job job(Config{});
  auto net = std::make_shared<NetImpl>();
  Trainer trainer(job, net, sgd_rule());
  const std::weak_ptr<NetImpl> watched = net;
  NetImpl& reference = *net;
  net.reset();
  ASSERT_FALSE(watched.expired());
  trainer.step([&] { return reference.forward(Batch(0, 8).x).square().mean(); }, 8);
}

const std::vector<Setup> kAllReduce = {Setup{2}, Setup{2, false}};

TEST(TrainerRefuses, FirstStepsOfDifferentTrainers) {
  for (const auto& setup : kAllReduce) {
    const auto errors = errors_of(setup, [](Job& job) {
      Net one = net_of(job);
      Net two = net_of(job);
      Trainer first(job, one, sgd_rule());
      Trainer second(job, two, sgd_rule());
      if (job.rank() == 0) first.step([&] { return loss_at(one, 0); }, 8);
      second.step([&] { return loss_at(two, 0); }, 8);
    });
    EXPECT_THAT(errors, Each(HasSubstr("first steps of different Trainers at the same time")));
  }
}

const std::vector<Setup> kAll = {Setup{2}, Setup{2, false}, with_server("ps-sync"), with_server("ps-async"),
                                 with_server("ps-local")};

TEST(TrainerRefuses, BatchesThatSayTheirSizeOnSomeWorkersOnly) {
  for (const auto& setup : kAll) {
    const auto errors = errors_of(setup, [](Job& job) {
      Net net = net_of(job);
      Trainer trainer(job, net, sgd_rule());
      for (int step = 0; step < 40; ++step) {
        const auto loss = [&] { return loss_at(net, step); };
        job.is_chief() ? trainer.step(loss, 8) : trainer.step(loss);
      }
      trainer.finish_epoch();
    });
    EXPECT_THAT(errors, Contains(HasSubstr("so give it on all workers, or on none")));
  }
}

TEST(TrainerRefuses, BatchesThatSayTheirSizeInSomeStepsOnly) {
  Job job(Config{});
  Net net;
  Trainer trainer(job, net, sgd_rule());
  trainer.step([&] { return loss_at(net, 0); }, 8);
  try {
    trainer.step([&] { return loss_at(net, 1); });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("in some steps and not in others"));
  }
  EXPECT_TRUE(trainer.step([&] { return loss_at(net, 1); }, 8));
}

TEST(TrainerRefuses, SchedulesThatDiffer) {
  const std::array<Schedule, 2> late = {warmup(samples(500'000), constant_rate()),
                                        warmup(samples(600'000), constant_rate())};
  const std::array<Schedule, 2> by_epochs = {cosine_decay(epochs(9)), cosine_decay(epochs(10))};
  const std::array<Schedule, 2> by_steps = {constant_rate(),
                                            [](const Position& now) { return now.step < 9000 ? 1.0 : 0.1; }};
  for (const auto& setup : kAll) {
    for (const auto& schedules : {late, by_epochs, by_steps}) {
      const auto errors = errors_of(setup, [&](Job& job) {
        Net net = net_of(job);
        const Trainer trainer(job, net, sgd_rule(),
                              {.epochs = 10,
                               .samples_per_epoch = 60'000,
                               .schedule = schedules.at(static_cast<size_t>(job.rank()))});
      });
      EXPECT_THAT(errors, Contains(AllOf(HasSubstr("the chief has "), HasSubstr("factor="))));
    }
  }
}

TEST(TrainerRefuses, AScheduleThatGivesNoNumber) {
  Job job(Config{});
  Net net;
  Trainer trainer(job, net, sgd_rule(),
                  {.schedule = [](const Position& now) { return now.samples < 16 ? 1.0 : kNan; }});
  for (int step = 0; step < 2; ++step) trainer.step([&] { return loss_at(net, step); }, 8);
  try {
    trainer.step([&] { return loss_at(net, 2); }, 8);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("TrainerOptions::schedule gives nan after 16 samples and 2 steps"));
  }
}

TEST(TrainerRefuses, ARateThatOneWorkerChangesInTheMiddle) {
  for (const size_t i : {0, 1}) {  // with all-reduce, where there is an optimizer to change
    for (const size_t group : {0, 1}) {
      const auto errors = errors_of(kAll[i], [&](Job& job) {
        Net net = net_of(job);
        torch::optim::SGD optimizer({torch::optim::OptimizerParamGroup(net->fc1->parameters()),
                                     torch::optim::OptimizerParamGroup(net->fc2->parameters())},
                                    torch::optim::SGDOptions(0.1));
        Trainer trainer(job, net, optimizer);
        for (int step = 0; step < 4; ++step) {
          if (step == 2 && !job.is_chief()) optimizer.param_groups()[group].options().set_lr(0.01);
          trainer.step([&] { return loss_at(net, step); }, 8);
        }
      });
      EXPECT_THAT(
          errors,
          Contains(HasSubstr("the learning rate of step 3 is 0.11 on worker/1 and 0.2 on the chief")));
    }
  }
}

TEST(TrainerRefuses, OtherParametersWithParameterServersByName) {
  for (const bool freeze : {true, false}) {
    const auto errors = errors_of(with_server("ps-sync"), [&](Job& job) {
      Net net = net_of(job);
      net->fc2->bias.set_requires_grad(freeze);
      Trainer trainer(job, net, sgd_rule());
      trainer.step([&] { return loss_at(net, 0); }, 8);
      net->fc2->bias.set_requires_grad(!freeze);
      trainer.step([&] { return loss_at(net, 1); }, 8);
    });
    EXPECT_THAT(errors, Contains(HasSubstr(freeze ? "the parameter fc2.bias is not trained any more"
                                                  : "the parameter fc2.bias is trained now, and was not")));
  }
}

struct OneLayerImpl : torch::nn::Module {
  OneLayerImpl() { register_module("fc", fc); }
  torch::nn::Linear fc{3, 2};
};
TORCH_MODULE(OneLayer);

// Alone as on several workers: a program does not fail only when it is given more of them.
TEST(TrainerRefuses, TensorsThatCantBeMadeTheChiefs) {
  Job job(Config{});
  const auto error_with = [&](const std::function<void(OneLayer&)>& add) {
    OneLayer net;
    add(net);
    return error_of([&] { const Trainer trainer(job, net, sgd_rule()); });
  };
  EXPECT_THAT(error_with([](OneLayer& net) {
                net->register_buffer("mean", torch::zeros({4}).expand({3, 4}));
              }),
              HasSubstr("several elements of the buffer mean lie in the same memory, as after expand()"));
  EXPECT_THAT(error_with([](OneLayer& net) { net->register_buffer("graph", torch::eye(3).to_sparse()); }),
              HasSubstr("the buffer graph is sparse"));
  EXPECT_THAT(error_with([](OneLayer& net) {
                const c10::InferenceMode inference;
                net->fc->bias =
                    net->fc->register_parameter("more", torch::ones({2}), /*requires_grad=*/false);
              }),
              HasSubstr("the parameter fc.more was made within torch::InferenceMode"));
  EXPECT_THAT(error_with([](OneLayer& net) { net->register_parameter("twice", net->fc->bias * 2); }),
              HasSubstr("the parameter twice is the result of a computation"));
}

TEST(TrainerRefuses, ToFreezeWhatAnotherTrainerTrains) {
  Job job(Config{});
  Net net;
  Trainer trainer(job, net, sgd_rule());
  trainer.step([&] { return loss_at(net, 0); }, 8);
  EXPECT_THAT(error_of([&] {
                const Trainer other(job, net, sgd_rule(), {.groups = {{.names = {"fc1.*"}, .frozen = true}}});
              }),
              HasSubstr("the parameter fc1.weight is trained by another Trainer"));
  trainer.step([&] { return loss_at(net, 1); }, 8);
}

// Two buffers, which have as many elements together on all workers.
struct TwoBuffers : torch::nn::Module {
  explicit TwoBuffers(Job& job) : rank(job.rank()) {
    layer = register_module("layer", torch::nn::Linear(2, 1));
    low = register_buffer("low", torch::zeros({6}));
    high = register_buffer("high", torch::zeros({2}));
  }
  Tensor forward() {
    if (is_training()) {
      low.set_data(torch::ones({3 + rank}));
      high.set_data(torch::ones({5 - rank}) * 2);
    }
    return layer(torch::ones({1, 2})).sum();
  }

  int rank;
  torch::nn::Linear layer = nullptr;
  Tensor low, high;
};

TEST(TrainerGuards, BuffersOfOtherSizesThanTheChiefsAreRefusedByName) {
  for (const auto& setup :
       {muster::detail::testing::Setup{2}, with_server("ps-sync"), with_server("ps-async")}) {
    const auto errors = errors_of(setup, [](Job& job) {
      TwoBuffers net(job);
      Trainer trainer(job, net, sgd_rule());
      trainer.step([&] { return net.forward(); }, 1);
      trainer.finish_epoch();
      trainer.evaluate([](Sums&) {});
    });
    EXPECT_THAT(errors, ::testing::Contains(AllOf(
                            HasSubstr("the chief's buffers have other sizes than those of this worker"),
                            HasSubstr("high [4] instead of [2]"), HasSubstr("broadcast_buffers = false"))));
  }
}

TEST(TrainerGuards, ABufferThatGrowsOnOneWorkerIsNamed) {
  const auto errors = errors_of({2}, [](Job& job) {
    TwoBuffers net(job);
    Trainer trainer(job, net, sgd_rule());
    trainer.step(
        [&] {
          if (job.rank() == 1) net.low.set_data(torch::ones({9}));
          return net.layer(torch::ones({1, 2})).sum();
        },
        1);
  });
  EXPECT_THAT(errors, ::testing::Contains(HasSubstr("low [9] instead of [6]")));
}

TEST(TrainerGuards, AnEvaluationGivesBackBuffersThatWereGivenOtherMemory) {
  on_workers({2}, [](Job& job) {
    TwoBuffers net(job);
    Trainer trainer(job, net, sgd_rule(), {.broadcast_buffers = true});
    net.low.fill_(10 + job.rank());
    trainer.evaluate([&](Sums&) {
      EXPECT_EQ(net.low[0].item<float>(), 10);
      net.low.set_data(torch::full({4}, 77.F));
    });
    EXPECT_EQ(net.low[0].item<float>(), 10 + job.rank());
    return 0;
  });
}

TEST(TrainerGuards, WhatNeedsAllWorkersSaysSoWhenTheOthersHaveEnded) {
  using Call = std::function<void(Job&, Net&, Trainer&)>;
  const std::pair<const char*, Call> calls[] = {
      {"evaluate() needs all workers: ", [](Job&, Net&, Trainer& it) { it.evaluate([](Sums&) {}); }},
      {"change_parameters() needs all workers: ",
       [](Job&, Net&, Trainer& it) { it.change_parameters([] {}); }},
      {"the Trainer's constructor needs all workers: ",
       [](Job& job, Net& net, Trainer&) { const Trainer second(job, net, sgd_rule()); }}};
  for (const auto& [expected, call] : calls) {
    const auto errors = errors_of({2}, [&](Job& job) {
      Net net = net_of(job);
      Net other = net_of(job);
      Trainer trainer(job, net, sgd_rule());
      trainer.step([&] { return loss_of(net, {0, 8}); }, 8);
      trainer.finish_epoch();
      if (job.is_chief()) call(job, other, trainer);
    });
    EXPECT_THAT(errors[0], HasSubstr(expected));
  }
}

}  // namespace
}  // namespace muster::detail
