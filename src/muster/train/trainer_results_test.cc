// What training must come to where it is easily wrong without a word: batches of different sizes in one step,
// parameters that lie otherwise than usual, norms where each worker updates a copy, and what can't be right.

#include <limits>
#include <optional>

#include "muster/base/error.h"
#include "muster/embedding.h"
#include "muster/train/trainer_test.h"

namespace muster::detail {
namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;

Setup one_worker(const std::string& strategy) {
  return {.workers = 1, .servers = 1, .configure = [=](Config& config) { config.strategy = strategy; }};
}

const std::vector<Setup> kAverages = {Setup{1}, Setup{2}, Setup{2, false}, with_server("ps-sync"),
                                      one_worker("ps-local")};

const std::vector<Setup> kFew = {Setup{1}, Setup{2}, with_server("ps-sync")};

TEST(TrainerResults, BatchesOfAStepCountByTheirSizes) {
  for (const auto& setup : kAverages) {
    Net alone;
    fill(*alone);
    const auto expected = plain_sgd(*alone, 3, [&](int step) { return loss_at(alone, step); });
    const auto found = on_workers(setup, [](Job& job) {
      Net net = net_of(job);
      Trainer trainer(job, net, sgd_rule(), {.accumulate = 3});
      double loss = 0;
      for (int step = 0; step < 3; ++step) {
        for (const auto& [begin, end] : {std::pair{0, 2}, std::pair{2, 7}, std::pair{7, 8}})
          trainer.step([&] { return loss_of(net, {8 * step + begin, 8 * step + end}); }, end - begin);
        loss = trainer.metrics().loss;
      }
      trainer.finish_epoch();
      EXPECT_EQ(trainer.position().samples, 24 * job.size());
      EXPECT_GT(loss, 0);
      return values_of(*net);
    });
    for (const auto& values : found) expect_near(values, expected);
  }
}

// As channels-last, and as a transposed view.
TEST(TrainerResults, ParametersThatLieOtherwiseAreTrainedAsTheyAre) {
  struct OddImpl : torch::nn::Module {
    OddImpl() {
      weight =
          register_parameter("weight", torch::zeros({4, 3, 5, 2}).contiguous(at::MemoryFormat::ChannelsLast));
      turned = register_parameter("turned", torch::zeros({3, 7}).t());
    }
    Tensor loss(int step) const {
      return ((weight - random({4, 3, 5, 2}, static_cast<uint64_t>(step))).square().mean() +
              (turned - random({7, 3}, static_cast<uint64_t>(step))).square().mean());
    }
    Tensor weight, turned;
  };
  OddImpl alone;
  fill(alone);
  const auto expected = plain_sgd(alone, 4, [&](int step) { return alone.loss(step); });
  auto setups = kAverages;
  setups.push_back(
      {.workers = 2, .servers = 2, .configure = [](Config& config) { config.strategy = "ps-sync"; }});
  for (const auto& setup : setups) {
    const auto found = on_workers(setup, [](Job& job) {
      OddImpl net;
      fill(net, job.is_chief() ? 7 : 100);
      Trainer trainer(job, net, sgd_rule());
      for (int step = 0; step < 4; ++step) trainer.step([&] { return net.loss(step); }, 8);
      trainer.finish_epoch();
      return values_of(net);
    });
    for (const auto& values : found) expect_near(values, expected);
  }
}

// A worker of ps-local updates by itself: with the average after each step, one is as a worker alone.
TEST(TrainerResults, LocalStepsAreClippedAndMeasured) {
  const auto train = [](const auto& setup, const optim::Optimizer& rule, double clip_norm) {
    return on_workers(setup,
                      [&](Job& job) {
                        Net net = net_of(job);
                        Trainer trainer(job, net, rule, {.clip_norm = clip_norm});
                        for (int step = 0; step < 4; ++step)
                          trainer.step([&] { return loss_at(net, step); }, 8);
                        trainer.finish_epoch();
                        return values_of(*net);
                      })
        .front();
  };
  auto two_servers = one_worker("ps-local");
  two_servers.servers = 2;
  for (const auto& [rule, clip_norm] :
       {std::pair{sgd_rule(), 0.01}, std::pair{optim::Optimizer(optim::LAMB()), 0.0},
        std::pair{optim::Optimizer(optim::LARS({.lr = 0.1})), 0.05}}) {
    const auto expected = train(kFew.front(), rule, clip_norm);
    expect_near(train(one_worker("ps-local"), rule, clip_norm), expected);
    expect_near(train(two_servers, rule, clip_norm), expected);
  }
}

TEST(TrainerResults, TheMetricsHaveTheRateOfTheLastStep) {
  for (const auto& setup : kAverages) {
    on_workers(setup, [](Job& job) {
      Net net = net_of(job);
      Trainer trainer(job, net, sgd_rule(), {.schedule = linear_decay(samples(100))});
      for (int step = 0; step < 3; ++step) {
        const double next = trainer.learning_rate();
        trainer.step([&] { return loss_at(net, step); }, 8);
        EXPECT_EQ(trainer.metrics().learning_rate, next);
        EXPECT_LT(trainer.learning_rate(), next);
      }
      trainer.finish_epoch();
      return 0;
    });
  }
}

TEST(TrainerRefuses, ParametersThatShareMemoryByName) {
  for (const auto& setup : kFew) {
    const auto errors = errors_of(setup, [](Job& job) {
      struct TiedImpl : torch::nn::Module {
        TiedImpl() {
          register_module("encoder", encoder);
          register_module("decoder", decoder);
          decoder->weight.set_data(encoder->weight);
        }
        torch::nn::Linear encoder{4, 4};
        torch::nn::Linear decoder{4, 4};
      };
      TiedImpl net;
      const Trainer trainer(job, net, sgd_rule());
    });
    EXPECT_THAT(errors, Contains(AllOf(HasSubstr("encoder.weight"), HasSubstr("decoder.weight"),
                                       HasSubstr("lie in the same memory"))));
  }
}

TEST(TrainerRefuses, AStepWithinAnEvaluation) {
  Job job(Config{});
  Net net;
  Trainer trainer(job, net, sgd_rule());
  trainer.step([&] { return loss_at(net, 0); }, 8);
  EXPECT_THAT(error_of([&] {
                trainer.evaluate([&](Sums&) {
                  const torch::AutoGradMode with_gradients(true);
                  trainer.step([&] { return loss_at(net, 0); }, 8);
                });
              }),
              HasSubstr("while one of its steps or evaluations runs"));
}

TEST(TrainerRefuses, OptionsThatAreNoNumbers) {
  const auto error = [](const TrainerOptions& options) {
    return error_of([&] {
      Job job(Config{});
      Net net;
      const Trainer trainer(job, net, sgd_rule(), options);
    });
  };
  EXPECT_THAT(error({.clip_norm = kNan}), HasSubstr("TrainerOptions::clip_norm is nan"));
  EXPECT_THAT(error({.loss_scale = std::numeric_limits<double>::infinity()}), HasSubstr("loss_scale is inf"));
  EXPECT_THAT(error({.schedule = [](const Position&) { return -1.0; }}), HasSubstr("schedule gives -1"));
}

TEST(TrainerRefuses, NoModuleAndAnAbsurdNumberOfSamples) {
  Job job(Config{});
  EXPECT_THAT(error_of([&] { const Trainer trainer(job, std::shared_ptr<NetImpl>(), sgd_rule()); }),
              HasSubstr("the pointer is null"));
  Net net;
  Trainer trainer(job, net, sgd_rule());
  EXPECT_THAT(
      error_of([&] { trainer.step([&] { return loss_at(net, 0); }, std::numeric_limits<int64_t>::max()); }),
      HasSubstr("samples; expected the size of the batch"));
}

TEST(TrainerRefuses, ToTrainAfterItsJob) {
  Net net;
  std::optional<Trainer> trainer;
  {
    Job job(Config{});
    trainer.emplace(job, net, sgd_rule());
    trainer->step([&] { return loss_at(net, 0); }, 8);
  }
  EXPECT_THAT(error_of([&] { trainer->step([&] { return loss_at(net, 0); }, 8); }),
              HasSubstr("the job that this Trainer trains in has ended"));
}

// As programs do that were written for an optimizer of torch's.
TEST(TrainerResults, GradientsThatTheProgramClearsBetweenTheBatchesOfAStepStillCount) {
  for (const auto& setup : kAverages) {
    Net alone;
    fill(*alone);
    const auto expected = plain_sgd(*alone, 2, [&](int step) { return loss_at(alone, step); });
    const auto found = on_workers(setup, [](Job& job) {
      Net net = net_of(job);
      Trainer trainer(job, net, sgd_rule(), {.accumulate = 2});
      for (int batch = 0; batch < 4; ++batch) {
        net->zero_grad();
        trainer.step(
            [&] {
              net->zero_grad();
              return loss_of(net, {4 * batch, 4 * batch + 4});
            },
            4);
      }
      trainer.finish_epoch();
      return values_of(*net);
    });
    for (const auto& values : found) expect_near(values, expected);
  }
}

// What the function's own backward pass leaves is added to the batches before it, as to the first.
TEST(TrainerResults, GradientsOfTheFunctionsOwnPassesCountInEveryBatch) {
  Net alone;
  fill(*alone);
  const auto both = [](Net& net, int batch) { return loss_at(net, batch) + loss_at(net, batch + 20); };
  const auto expected =
      plain_sgd(*alone, 2, [&](int step) { return (both(alone, 2 * step) + both(alone, 2 * step + 1)) / 2; });
  for (const auto& setup : kFew) {
    const auto found = on_workers(setup, [](Job& job) {
      Net net = net_of(job);
      Trainer trainer(job, net, sgd_rule(), {.accumulate = 2});
      for (int batch = 0; batch < 4; ++batch) {
        trainer.step(
            [&] {
              loss_at(net, batch + 20).backward();
              return loss_at(net, batch);
            },
            8);
      }
      trainer.finish_epoch();
      return values_of(*net);
    });
    for (const auto& values : found) expect_near(values, expected);
  }
}

// Also those of a table that is no part of the module.
TEST(TrainerResults, RowsOfTablesDoNotSeeWhatTheLossIsMultipliedBy) {
  const auto train = [](const TrainerOptions& options) {
    Tensor rows;
    const auto errors = errors_of(one_worker("ps-async"), [&](Job& job) {
      Net net = net_of(job);
      ShardedEmbedding table(job, {.name = "rows", .width = 6, .optimizer = optim::SGD({.lr = 0.1})});
      Trainer trainer(job, net, optim::SGD({.lr = 1e-12}), options);  // which does not change the net
      for (const int64_t size : {8, 4, 6, 2})
        trainer.step([&] { return net(table(torch::arange(size))).square().sum(); }, size);
      trainer.finish_epoch();
      rows = table(torch::arange(8)).detach().clone();
    });
    EXPECT_THAT(errors, Each(""));
    return rows;
  };
  for (const int accumulate : {1, 2})
    expect_near({train({.accumulate = accumulate, .loss_scale = 1024})}, {train({.accumulate = accumulate})});
}

TEST(TrainerResults, RowsOfTablesStayFiniteWhereAGradientIsLeftOut) {
  for (const std::string on_nan : {"skip", "stop"}) {
    auto setup = with_server("ps-async");
    setup.configure = [configure = setup.configure, on_nan](Config& config) {
      configure(config);
      config.on_nan = on_nan;
    };
    const auto errors = errors_of(setup, [&](Job& job) {
      ShardedEmbedding table(job, {.name = "rows", .width = 2, .optimizer = optim::SGD({.lr = 0.1})});
      const auto ids = torch::arange(5);
      (table(ids).sum() * (job.rank() == 1 ? kNan : 1.0)).backward();
      job.barrier("pushed");
      EXPECT_TRUE(table(ids).isfinite().all().item<bool>());
    });
    if (on_nan == "skip") {
      EXPECT_THAT(errors, Each(""));
    } else {
      EXPECT_THAT(errors, Contains(HasSubstr("a gradient of table 'rows' is infinite or not a number")));
    }
  }
}

// They count by the size of the batch and are divided by the scale of the loss, as what the function returns.
TEST(TrainerResults, GradientsOfTheFunctionsOwnPassesCountAsItsLossDoes) {
  const std::vector<TrainerOptions> all = {
      {.accumulate = 2}, {.loss_scale = 64}, {.accumulate = 2, .loss_scale = 64}};
  for (const auto& options : all) {
    const auto train = [&](bool apart) {
      return on_workers({2}, [&](Job& job) {
        Net net = net_of(job);
        Trainer trainer(job, net, sgd_rule(), options);
        for (int batch = 0; batch < 6; ++batch) {
          const int64_t samples = 8 - 3 * (batch % 2);
          const auto part = [&](int64_t at) {
            return loss_of(net, {8 * batch + at, 8 * batch + at + samples});
          };
          trainer.step(
              [&] {
                if (!apart) return part(0) + part(100);
                part(100).backward();
                return part(0);
              },
              samples);
        }
        return values_of(*net);
      });
    };
    const auto expected = train(false);
    for (const auto& found : train(true)) expect_near(found, expected.front());
  }
}

}  // namespace
}  // namespace muster::detail
