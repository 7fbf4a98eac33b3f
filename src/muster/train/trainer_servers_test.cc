// The Trainer with parameter servers: real servers and workers, in threads of one process.

#include <atomic>
#include <limits>

#include "muster/base/log.h"
#include "muster/train/trainer_test.h"

namespace muster::detail {
namespace {

using namespace testing;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kBatch = 6;

Batch batch_of(int64_t round, int worker, int workers) {
  const int64_t begin = (round * workers + worker) * kBatch % 480;
  return {begin, begin + kBatch};
}

Setup with_servers(int workers, int servers, const std::function<void(Config&)>& configure,
                   bool shared_memory = true) {
  return {.workers = workers, .shared_memory = shared_memory, .servers = servers, .configure = configure};
}

std::function<void(Config&)> strategy(const std::string& name) {
  return [name](Config& config) { config.strategy = name; };
}

// Each worker takes `rounds` steps, then finishes the epoch; gives everyone's parameters.
std::vector<Tensors> train(const Setup& setup, int rounds, const optim::Optimizer& rule = sgd_rule(),
                           const TrainerOptions& options = {}) {
  return on_workers(setup, [&](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, rule, options);
    for (int round = 0; round < rounds; ++round) {
      const Batch batch = batch_of(round, job.rank(), job.size());
      trainer.step([&] { return loss_of(net, batch); }, batch.size());
    }
    trainer.finish_epoch();
    EXPECT_EQ(trainer.steps(), steps_of(job, rounds));
    return values_of(*net);
  });
}

// A schedule means the same in every mode: all workers' samples count, and each once.
TEST(TrainerServers, ThePositionIsTheJobs) {
  const std::vector<std::function<void(Config&)>> modes = {
      strategy("ps-sync"),
      strategy("ps-async"),
      strategy("ps-ssp"),
      [](Config& config) {
        config.strategy = "ps-ssp";
        config.staleness = 2;
      },
      strategy("ps-local"),
      [](Config& config) {
        config.strategy = "ps-sync";
        config.switches = "0:ps-sync,3:ps-async,9:ps-sync";
      },
      [](Config& config) {  // some gradients come too late, and their samples count all the same
        config.strategy = "ps-sync";
        config.replicas_to_aggregate = 2;
      },
  };
  for (size_t i = 0; i < modes.size(); ++i) {
    SCOPED_TRACE(i);
    on_workers(with_servers(3, 2, modes[i]), [](Job& job) {
      Net net = net_of(job);
      constexpr int64_t kEpoch = 8 * 3 * kBatch;
      Trainer trainer(job, net, optim::SGD({.lr = 0.1}),
                      {.samples_per_epoch = kEpoch, .schedule = step_decay(epochs(1), 0.5)});
      for (int epoch = 0; epoch < 2; ++epoch) {
        for (int round = 0; round < 8; ++round) {
          const Batch batch = batch_of(round, job.rank(), job.size());
          trainer.step([&] { return loss_of(net, batch); }, batch.size());
          // Of local steps that were not sent yet, the others' are guessed.
          const bool is_exact = job.context().config().strategy != "ps-local";
          if (is_exact) {
            EXPECT_LE(trainer.position().samples, kEpoch * (epoch + 1));
          }
        }
        trainer.finish_epoch();
        EXPECT_EQ(trainer.position().samples, kEpoch * (epoch + 1));
        EXPECT_DOUBLE_EQ(trainer.position().epochs(), epoch + 1);
        EXPECT_DOUBLE_EQ(trainer.learning_rate(), epoch == 0 ? 0.05 : 0.025);
      }
      return 0;
    });
  }
}

void expect_same_bits(const std::vector<Tensors>& found, const Tensors& expected) {
  for (const auto& values : found) {
    ASSERT_EQ(values.size(), expected.size());
    for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(values[i].equal(expected[i])) << "tensor " << i;
  }
}

TEST(TrainerServers, OneWorkerHasTheBitsOfPlainTrainingInEachMode) {
  const std::vector<optim::Optimizer> optimizers = {sgd_rule(), optim::Adam({.lr = 0.01}),
                                                    optim::LAMB({.lr = 0.01})};
  for (const auto& rule : optimizers) {
    const auto plain = train({.workers = 1}, 12, rule).front();
    for (const int servers : {1, 3}) {
      for (const char* mode : {"ps-sync", "ps-async", "ps-ssp"}) {
        for (const bool shared : {true, false}) {
          SCOPED_TRACE(fmt::format("{} {} servers {} shared {}", rule.to_string(), mode, servers, shared));
          const auto found = train(with_servers(1, servers, strategy(mode), shared), 12, rule);
          if (rule.rule()->measures() && servers > 1) {
            for (const auto& values : found)
              expect_near(values, plain, 1e-6);  // norms are added up otherwise
          } else {
            expect_same_bits(found, plain);
          }
        }
      }
    }
  }
}

TEST(TrainerServers, SynchronousWorkersAreAnAllReduce) {
  const auto expected = train({.workers = 3}, 10).front();
  for (const int servers : {1, 2}) {
    for (const bool shared : {true, false}) {
      SCOPED_TRACE(fmt::format("{} servers, shared memory {}", servers, shared));
      const auto found = train(with_servers(3, servers, strategy("ps-sync"), shared), 10);
      for (const auto& values : found) expect_near(values, expected, 1e-6);
      expect_same_bits(found, found.front());
    }
  }
}

TEST(TrainerServers, NormsAreThoseOfAnAllReduce) {
  for (const auto& [rule, clip_norm] :
       {std::pair{sgd_rule(), 0.02}, std::pair{optim::Optimizer(optim::LAMB({.lr = 0.01})), 0.0},
        std::pair{optim::Optimizer(optim::LARS({.lr = 0.1})), 0.05}}) {
    const auto expected = train({.workers = 2}, 10, rule, {.clip_norm = clip_norm}).front();
    for (const int servers : {1, 2, 3}) {
      for (const bool shared : {true, false}) {
        SCOPED_TRACE(fmt::format("{}, {} servers, shared memory {}", rule.to_string(), servers, shared));
        const auto found =
            train(with_servers(2, servers, strategy("ps-sync"), shared), 10, rule, {.clip_norm = clip_norm});
        for (const auto& values : found) expect_near(values, expected, 1e-6);
      }
    }
  }
}

TEST(TrainerServers, WithAStalenessOf0SspIsSynchronous) {
  const auto expected = train(with_servers(3, 1, strategy("ps-sync")), 10).front();
  expect_same_bits(train(with_servers(3, 1, strategy("ps-ssp")), 10), expected);
}

TEST(TrainerServers, AveragesAfterEachLocalStepAreAnAllReduceForPlainSgd) {
  const auto rule = optim::SGD({.lr = 0.1});
  const auto setup = with_servers(2, 1, [](Config& config) {
    config.strategy = "ps-local";
    config.sync_every = 1;
  });
  const auto expected = train({.workers = 2}, 10, rule).front();
  for (const auto& values : train(setup, 10, rule)) expect_near(values, expected, 2e-6);
}

TEST(TrainerServers, LocalStepsAreThoseOfAPlainLoopBetweenTheAverages) {
  const auto setup = with_servers(1, 1, [](Config& config) {
    config.strategy = "ps-local";
    config.sync_every = 4;
  });
  const auto expected = train({.workers = 1}, 10, optim::Adam({.lr = 0.01})).front();
  for (const auto& values : train(setup, 10, optim::Adam({.lr = 0.01}))) expect_near(values, expected, 2e-6);
}

TEST(TrainerServers, LocalWorkersAgreeAfterAnAverage) {
  const auto setup = with_servers(3, 2, [](Config& config) {
    config.strategy = "ps-local";
    config.sync_every = 4;
    config.outer_momentum = 0.5;
  });
  const auto found = train(setup, 8);
  expect_same_bits(found, found.front());
}

TEST(TrainerServers, AsynchronousWorkersUseEveryGradient) {
  for (const auto& mode : {"ps-async", "ps-ssp"}) {
    const auto found = train(with_servers(3, 2,
                                          [&](Config& config) {
                                            config.strategy = mode;
                                            config.staleness = 2;
                                          }),
                             15, optim::SGD({.lr = 0.01}));
    expect_same_bits(found, found.front());
  }
}

TEST(TrainerServers, MaxStepsCountsGlobalStepsInEachMode) {
  for (const char* mode : {"ps-sync", "ps-async", "ps-ssp", "ps-local"}) {
    SCOPED_TRACE(mode);
    std::atomic<int> taken = 0;
    on_workers(with_servers(2, 1,
                            [&](Config& config) {
                              config.strategy = mode;
                              config.staleness = 3;
                              config.sync_every = 5;
                            }),
               [&](Job& job) {
                 Net net = net_of(job);
                 Trainer trainer(job, net, optim::SGD({.lr = 0.01}), {.max_steps = 17});
                 const Batch batch = batch_of(0, job.rank(), 2);
                 while (trainer.step([&] { return loss_of(net, batch); }, batch.size())) ++taken;
                 EXPECT_TRUE(trainer.done());
                 EXPECT_EQ(trainer.steps(), 17);
                 return 0;
               });
    const bool together = std::string(mode) == "ps-sync" || std::string(mode) == "ps-local";
    EXPECT_EQ(taken, together ? 34 : 17);
  }
}

TEST(TrainerServers, TheModeChangesAtAStepAndNoUpdateIsLost) {
  std::atomic<int> taken = 0;
  on_workers(with_servers(2, 1,
                          [](Config& config) {
                            config.strategy = "ps-sync";
                            config.switches = "0:ps-sync,5:ps-async,15:ps-sync";
                          }),
             [&](Job& job) {
               Net net = net_of(job);
               Trainer trainer(job, net, optim::SGD({.lr = 0.01}), {.max_steps = 20});
               const Batch batch = batch_of(0, job.rank(), 2);
               while (trainer.step([&] { return loss_of(net, batch); }, batch.size()))
                 taken += trainer.metrics().dropped == 0 ? 1 : 0;
               EXPECT_EQ(trainer.steps(), 20);
               return 0;
             });
  EXPECT_EQ(taken, 5 * 2 + 10 + 5 * 2);
}

std::function<void(Config&)> switches(const std::string& text, int sync_every) {
  return [=](Config& config) {
    config.strategy = text.substr(2, text.find(',') - 2);
    config.switches = text;
    config.sync_every = sync_every;
  };
}

TEST(TrainerServers, LocalStepsMayBeAPartOfTraining) {
  const auto rule = optim::SGD({.lr = 0.1});
  const auto expected = train({.workers = 2}, 10, rule).front();
  const auto alone = train({.workers = 1}, 12, rule).front();
  for (const int servers : {1, 2}) {
    for (const bool shared : {true, false}) {
      SCOPED_TRACE(fmt::format("{} servers, shared memory {}", servers, shared));
      const auto each_step = switches("0:ps-local,3:ps-sync,6:ps-local", 1);
      for (const auto& values : train(with_servers(2, servers, each_step, shared), 10, rule))
        expect_near(values, expected, 2e-6);
      const auto some_steps = switches("0:ps-sync,2:ps-local,7:ps-async", 3);
      for (const auto& values : train(with_servers(1, servers, some_steps, shared), 12, rule))
        expect_near(values, alone, 2e-6);
    }
  }
}

// What a server updates in 16 bits has a copy in float32, which the averages must reach, too.
TEST(TrainerServers, LocalStepsOfBFloat16AreFollowedByGradients) {
  const auto found =
      on_workers(with_servers(2, 2, switches("0:ps-sync,4:ps-local,8:ps-sync,12:ps-local", 2)), [](Job& job) {
        torch::nn::Linear net(16, 4);
        {
          const torch::NoGradGuard no_grad;
          net->weight.zero_();
          net->bias.zero_();
        }
        net->to(torch::kBFloat16);
        Trainer trainer(job, net, optim::SGD({.lr = 1}), {.max_steps = 16});
        const Tensor target = torch::ones({8, 4}, torch::kBFloat16);
        const Tensor input = torch::ones({8, 16}, torch::kBFloat16) / 16;
        while (trainer.step([&] { return (net(input) - target).pow(2).mean(); }, 8)) {
        }
        return Tensors{net(input).detach().to(torch::kFloat32)};
      });
  expect_same_bits(found, found.front());
  // The distance to the target is about half as large after each step, but for what bfloat16 can't tell.
  EXPECT_LT(found.front()[0].sub(1).abs().max().item<float>(), 0.02F);
}

TEST(TrainerServers, TheModeChangesToLocalStepsAndFromThemAtItsStep) {
  std::atomic<int> taken = 0;
  on_workers(with_servers(2, 2, switches("0:ps-async,6:ps-local,15:ps-sync", 4)), [&](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, optim::Adam({.lr = 0.01}), {.max_steps = 20});
    const Batch batch = batch_of(0, job.rank(), 2);
    while (trainer.step([&] { return loss_of(net, batch); }, batch.size())) ++taken;
    EXPECT_EQ(trainer.steps(), 20);
    EXPECT_EQ(trainer.metrics().dropped, 0);
    return 0;
  });
  EXPECT_EQ(taken, 6 + (15 - 6) * 2 + (20 - 15) * 2);
}

TEST(TrainerServers, WorkersMayHaveDifferentAmountsOfData) {
  for (const char* mode : {"ps-sync", "ps-async", "ps-ssp", "ps-local"}) {
    SCOPED_TRACE(mode);
    const auto found = on_workers(with_servers(3, 1,
                                               [&](Config& config) {
                                                 config.strategy = mode;
                                                 config.staleness = 1;
                                                 config.sync_every = 3;
                                               }),
                                  [](Job& job) {
                                    Net net = net_of(job);
                                    Trainer trainer(job, net, optim::SGD({.lr = 0.01}));
                                    for (int epoch = 0; epoch < 2; ++epoch) {
                                      for (int i = 0; i < 4 * job.rank(); ++i) {
                                        const Batch batch = batch_of(i, job.rank(), 3);
                                        trainer.step([&] { return loss_of(net, batch); }, batch.size());
                                      }
                                      trainer.finish_epoch();
                                    }
                                    return values_of(*net);
                                  });
    expect_same_bits(found, found.front());
  }
}

TEST(TrainerServers, HogwildReadsInPlace) {
  const auto setup = with_servers(2, 1, [](Config& config) {
    config.strategy = "ps-async";
    config.hogwild = true;
  });
  const auto found = train(setup, 10, optim::SGD({.lr = 0.01}));
  expect_same_bits(found, found.front());
}

TEST(TrainerServers, UntrainedTensorsAndBuffersAreTheChiefs) {
  on_workers(with_servers(2, 1, strategy("ps-async")), [](Job& job) {
    torch::nn::Sequential net(torch::nn::Linear(6, 3), torch::nn::BatchNorm1d(3));
    fill(*net, job.is_chief() ? 7 : 99);
    net[0]->as<torch::nn::Linear>()->bias.requires_grad_(false);
    const Trainer trainer(job, net, optim::SGD({.lr = 0.01}));
    torch::nn::Sequential expected(torch::nn::Linear(6, 3), torch::nn::BatchNorm1d(3));
    fill(*expected, 7);
    expect_near(values_of(*net), values_of(*expected), 0);
    EXPECT_EQ(job.context().get("muster/untrained/1"), "stored") << "they do not go through the coordinator";
    return 0;
  });
}

TEST(TrainerServers, EvaluationsUseTheChiefsBuffers) {
  on_workers(with_servers(3, 2, strategy("ps-async")), [](Job& job) {
    torch::nn::BatchNorm1d norm(3);
    torch::nn::Sequential net(torch::nn::Linear(6, 3), norm);
    Trainer trainer(job, net, optim::SGD({.lr = 0.01}));
    for (int evaluation = 1; evaluation <= 5; ++evaluation) {
      norm->running_mean.fill_(100 * evaluation + job.rank());
      norm->num_batches_tracked.fill_((int64_t{1} << 40) + evaluation + 10 * job.rank());
      trainer.evaluate([&](Sums&) {
        EXPECT_EQ(norm->running_mean[2].item<double>(), 100 * evaluation);
        EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), (int64_t{1} << 40) + evaluation);
      });
    }
    return 0;
  });
}

TEST(TrainerServers, AnEvaluationAddsUpOverAllWorkersWithTheNewestParameters) {
  on_workers(with_servers(3, 1, strategy("ps-async")), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, optim::SGD({.lr = 0.01}));
    const Batch batch = batch_of(0, job.rank(), 3);
    for (int i = 0; i < 1 + job.rank(); ++i) trainer.step([&] { return loss_of(net, batch); }, 6);
    trainer.finish_epoch();
    const auto sums = trainer.evaluate([&](Sums& mine) {
      mine["workers"] += 1;
      mine["weights"] += net->fc1->weight.sum().item<double>();
    });
    EXPECT_EQ(sums.at("workers"), 3);
    EXPECT_NEAR(sums.at("weights"), 3 * net->fc1->weight.sum().item<double>(), 1e-9);
    return 0;
  });
}

TEST(TrainerServers, AGradientThatIsNotANumberStopsAllAndIsNamed) {
  std::string log;
  set_log_sink([&](std::string_view line) { log += line; });  // called under the log's lock
  const auto configure = [](Config& config) {
    config.strategy = "ps-async";
    config.log_level = LogLevel::kInfo;
  };
  const auto errors = errors_of(with_servers(2, 1, configure), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, optim::SGD({.lr = 0.01}));
    const Batch batch = batch_of(0, job.rank(), 2);
    for (int i = 0; i < 1000; ++i) {
      const double factor = job.rank() == 1 && i == 3 ? std::numeric_limits<double>::quiet_NaN() : 1;
      trainer.step([&] { return loss_of(net, batch) * factor; }, 6);
    }
    trainer.finish_epoch();
  });
  set_log_sink(nullptr);
  EXPECT_THAT(log, HasSubstr("stopped in step "));
  EXPECT_THAT(errors[0], HasSubstr("is infinite or not a number"));
  EXPECT_THAT(errors[1], AnyOf(HasSubstr("gradient of fc1"), HasSubstr("gradient of fc2")));
}

TEST(TrainerServers, AGradientThatIsNotANumberMayBeLeftOut) {
  for (const char* mode : {"ps-async", "ps-sync"}) {
    on_workers(with_servers(2, 1,
                            [&](Config& config) {
                              config.strategy = mode;
                              config.on_nan = "skip";
                            }),
               [](Job& job) {
                 Net net = net_of(job);
                 Trainer trainer(job, net, optim::SGD({.lr = 0.01}));
                 const Batch batch = batch_of(0, job.rank(), 2);
                 for (int i = 0; i < 10; ++i) {
                   const double factor = i == 3 ? std::numeric_limits<double>::infinity() : 1;
                   trainer.step([&] { return loss_of(net, batch) * factor; }, 6);
                 }
                 trainer.finish_epoch();
                 EXPECT_EQ(trainer.metrics().skipped, 1);
                 for (const auto& value : values_of(*net)) EXPECT_TRUE(value.isfinite().all().item<bool>());
                 return 0;
               });
  }
}

// What making a Trainer throws on the chief.
std::string error_of(const Setup& setup, const TrainerOptions& options = {}) {
  return errors_of(setup,
                   [&](Job& job) {
                     Net net = net_of(job);
                     const Trainer trainer(job, net, sgd_rule(), options);
                   })
      .front();
}

TEST(TrainerServers, WhatCannotWorkIsSaid) {
  EXPECT_THAT(error_of(with_servers(1, 0, strategy("ps-sync"))), HasSubstr("needs a parameter server"));
  EXPECT_THAT(error_of(with_servers(1, 1,
                                    [](Config& config) {
                                      config.strategy = "ps-sync";
                                      config.init_tokens = 1;
                                      config.replicas_to_aggregate = 3;
                                    })),
              HasSubstr("--init-tokens"));
  EXPECT_THAT(error_of(with_servers(1, 2,
                                    [](Config& config) {
                                      config.strategy = "ps-async";
                                      config.hogwild = true;
                                    })),
              HasSubstr("--hogwild needs one"));
  EXPECT_THAT(error_of(with_servers(1, 1,
                                    [](Config& config) {
                                      config.strategy = "ps-async";
                                      config.switches = "0:ps-async,5:ps-local";
                                      config.hogwild = true;
                                    })),
              HasSubstr("--hogwild is not for ps-local"));
}

TEST(TrainerServers, ModelsThatDifferAreAnErrorThatNamesTheDifference) {
  const auto errors = errors_of(with_servers(2, 1, strategy("ps-sync")), [](Job& job) {
    torch::nn::Linear net(6, job.is_chief() ? 3 : 4);
    Trainer trainer(job, net, sgd_rule());
    for (int i = 0; i < 100; ++i) trainer.step([&] { return net(random({2, 6}, 1)).sum(); }, 2);
  });
  EXPECT_THAT(errors[1], HasSubstr("the workers do not train the same"));
}

}  // namespace
}  // namespace muster::detail
