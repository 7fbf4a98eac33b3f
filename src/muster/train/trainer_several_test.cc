// Several models in one program, each with a Trainer: in every strategy, with losses that run through the
// other model, and with Trainers that come and go.

#include "muster/base/error.h"
#include "muster/embedding.h"
#include "muster/train/trainer_test.h"

namespace muster::detail {
namespace {

using namespace testing;
using ::testing::HasSubstr;

/// A small DCGAN: noise of 4 numbers, pictures of 8 by 8.
struct GeneratorImpl : torch::nn::Module {
  GeneratorImpl() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("last", last);
  }
  Tensor forward(const Tensor& x) { return torch::tanh(last(torch::relu(norm(first(x))))); }
  torch::nn::ConvTranspose2d first{torch::nn::ConvTranspose2dOptions(4, 6, 4).bias(false)};
  torch::nn::BatchNorm2d norm{6};
  torch::nn::ConvTranspose2d last{torch::nn::ConvTranspose2dOptions(6, 1, 4).stride(2).padding(1)};
};
TORCH_MODULE(Generator);

struct DiscriminatorImpl : torch::nn::Module {
  DiscriminatorImpl() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("last", last);
  }
  Tensor forward(const Tensor& x) { return last(torch::leaky_relu(norm(first(x)), 0.2)).flatten(); }
  torch::nn::Conv2d first{torch::nn::Conv2dOptions(1, 6, 4).stride(2).padding(1).bias(false)};
  torch::nn::BatchNorm2d norm{6};
  torch::nn::Conv2d last{torch::nn::Conv2dOptions(6, 1, 4)};
};
TORCH_MODULE(Discriminator);

constexpr int64_t kPictures = 6;  // a step, of each worker

/// Both models and what they are given, the same for the same worker and step.
struct Pair {
  Generator generator;
  Discriminator discriminator;
  Tensor made;  // by the generator, for the discriminator's step and its own

  explicit Pair(uint64_t seed = 7) {
    fill(*generator, seed);
    fill(*discriminator, seed + 100);
  }

  static Tensor tell(const Tensor& guess, double answer) {
    return torch::binary_cross_entropy_with_logits(guess, torch::full_like(guess, answer));
  }
  static uint64_t seed_of(int worker, int step) { return static_cast<uint64_t>(1000 + 97 * worker + step); }

  Tensor real_loss(int worker, int step) {
    return tell(discriminator(random({kPictures, 1, 8, 8}, 5 * seed_of(worker, step))), 1);
  }
  Tensor made_loss(int worker, int step) {
    made = generator(random({kPictures, 4, 1, 1}, seed_of(worker, step)));
    return tell(discriminator(made.detach()), 0);
  }
  Tensor generator_loss() { return tell(discriminator(made), 1); }

  Tensors values() const {
    Tensors all = values_of(*generator);
    for (auto& value : values_of(*discriminator)) all.push_back(value);
    return all;
  }
};

/// A Pair whose values count only on the chief.
Pair pair_of(const Job& job) {
  return Pair(job.is_chief() ? 7 : 500 + static_cast<uint64_t>(job.rank()));
}

optim::Optimizer slow_rule() {
  return optim::SGD({.lr = 0.05, .momentum = 0.5});
}

/// What torch alone makes of it, with the mean of all workers' losses.
Tensors plain_pair(int workers, int steps) {
  Pair pair;
  const auto options = torch::optim::SGDOptions(0.05).momentum(0.5);
  torch::optim::SGD generator(pair.generator->parameters(), options);
  torch::optim::SGD discriminator(pair.discriminator->parameters(), options);
  for (int step = 0; step < steps; ++step) {
    discriminator.zero_grad();
    Tensors made;
    for (int worker = 0; worker < workers; ++worker) {
      ((pair.real_loss(worker, step) + pair.made_loss(worker, step)) / workers).backward();
      made.push_back(pair.made);
    }
    discriminator.step();
    generator.zero_grad();
    for (const auto& one : made) {
      pair.made = one;
      (pair.generator_loss() / workers).backward();
    }
    generator.step();
  }
  return pair.values();
}

/// The same by two Trainers.
std::vector<Tensors> train_pair(const Setup& setup, int steps) {
  return on_workers(setup, [&](Job& job) {
    Pair pair = pair_of(job);
    Trainer generator(job, pair.generator, slow_rule());
    Trainer discriminator(job, pair.discriminator, slow_rule());
    for (int step = 0; step < steps; ++step) {
      discriminator.step([&] { return pair.real_loss(job.rank(), step) + pair.made_loss(job.rank(), step); },
                         kPictures);
      generator.step([&] { return pair.generator_loss(); }, kPictures);
    }
    discriminator.finish_epoch();
    generator.finish_epoch();
    EXPECT_EQ(generator.steps(), steps_of(job, steps));
    EXPECT_EQ(discriminator.steps(), steps_of(job, steps));
    return pair.values();
  });
}

Setup setup_of(const std::string& strategy, int workers, bool shared = true, int servers = 1) {
  return {.workers = workers,
          .shared_memory = shared,
          .servers = strategy == "allreduce" ? 0 : servers,
          .configure = [strategy](Config& config) {
            config.strategy = strategy;
            config.staleness = 2;
            config.sync_every = 3;
          }};
}

class SeveralModels : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Strategies, SeveralModels,
                         ::testing::Values("allreduce", "ps-sync", "ps-async", "ps-ssp", "ps-local"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(SeveralModelsTogether, AllReduceAndSynchronousServersDoWhatTorchDoes) {
  for (const int workers : {2, 3}) {
    const auto expected = plain_pair(workers, 50);
    for (const bool shared : {true, false}) {
      SCOPED_TRACE(fmt::format("{} workers, shared memory {}", workers, shared));
      const auto reduced = train_pair(setup_of("allreduce", workers, shared), 50);
      expect_all(reduced, expected, 1e-5);
      for (const int servers : {1, 2}) {
        const auto served = train_pair(setup_of("ps-sync", workers, shared, servers), 50);
        expect_all(served, reduced.front(), 1e-5);
      }
    }
  }
}

TEST_P(SeveralModels, WorkersEndWithTheSameParameters) {
  for (const int workers : {2, 3}) {
    const auto found = train_pair(setup_of(GetParam(), workers, workers == 2, workers - 1), 20);
    expect_all(found, found.front(), 0);
    for (const auto& value : found.front()) EXPECT_TRUE(value.isfinite().all().item<bool>());
  }
}

// The steps of the one come between those of the other in any order, and between the batches of one step.
TEST_P(SeveralModels, GradientsThatTheOthersPassesLeaveDoNotCount) {
  const auto train = [&](bool disturbed) {
    return on_workers(setup_of(GetParam(), 1), [&](Job& job) {
      Pair pair = pair_of(job);
      Trainer discriminator(job, pair.discriminator, slow_rule(), {.accumulate = 2});
      Trainer generator(job, pair.generator, slow_rule());
      int taken = 0;
      for (const char which : std::string("DGDDGGDGDDDGDG")) {
        if (which == 'D') {
          discriminator.step([&] { return pair.real_loss(0, taken) + pair.made_loss(0, taken); }, kPictures);
        } else {
          generator.step(
              [&] {
                pair.made = pair.generator(random({kPictures, 4, 1, 1}, static_cast<uint64_t>(taken)));
                for (auto& parameter : pair.discriminator->parameters()) parameter.requires_grad_(disturbed);
                const Tensor loss = pair.generator_loss();
                for (auto& parameter : pair.discriminator->parameters()) parameter.requires_grad_(true);
                return loss;
              },
              kPictures);
        }
        ++taken;
      }
      EXPECT_EQ(discriminator.steps(), 4);
      EXPECT_EQ(generator.steps(), 6);
      return pair.values();
    });
  };
  const auto expected = train(false).front();
  expect_all(train(true), expected, 0);
}

// As DCGAN is written for torch: a backward pass for the real pictures, and one for those that were made.
TEST_P(SeveralModels, AFunctionMayRunABackwardPassOfItsOwnBefore) {
  const auto train = [&](bool apart) {
    return on_workers(setup_of(GetParam(), 2, true, 1),
                      [&](Job& job) {
                        Pair pair = pair_of(job);
                        Trainer trainer(job, pair.discriminator, slow_rule());
                        for (int step = 0; step < 4; ++step) {
                          trainer.step([&] {
                            const Tensor loss = pair.real_loss(0, step);
                            if (!apart) return loss + pair.made_loss(0, step);
                            loss.backward();
                            return pair.made_loss(0, step);
                          });
                        }
                        trainer.finish_epoch();
                        return values_of(*pair.discriminator);
                      })
        .front();
  };
  if (std::string(GetParam()) == "ps-async" || std::string(GetParam()) == "ps-ssp") {
    for (const auto& value : train(true)) EXPECT_TRUE(value.isfinite().all().item<bool>());
  } else {
    expect_near(train(true), train(false), 1e-6);
  }
}

TEST_P(SeveralModels, TrainersComeAndGoInAnyOrderWhileOthersGoOn) {
  for (const int workers : {1, 3}) {
    const auto found = on_workers(setup_of(GetParam(), workers, true, 2), [&](Job& job) {
      std::vector<Net> nets;
      std::vector<std::unique_ptr<Trainer>> trainers;
      const auto make = [&] {
        nets.push_back(net_of(job));
        trainers.push_back(std::make_unique<Trainer>(job, nets.back(), optim::SGD({.lr = 0.01})));
      };
      const auto step_all = [&] {
        for (int round = 0; round < 4; ++round) {
          for (size_t i = 0; i < trainers.size(); ++i) {
            const int64_t begin = 8 * (round * job.size() + job.rank());
            const Batch batch(begin, begin + 8);
            if (trainers[i]) trainers[i]->step([&] { return loss_of(nets[i], batch); }, 8);
          }
        }
      };
      for (int i = 0; i < 3; ++i) make();
      step_all();
      trainers[0].reset();
      step_all();
      make();
      step_all();
      trainers[2].reset();
      make();
      trainers[1].reset();
      step_all();
      for (const auto& trainer : trainers) {
        if (trainer) trainer->finish_epoch();
      }
      EXPECT_EQ(trainers[3]->steps(), steps_of(job, 8));
      EXPECT_EQ(trainers[4]->steps(), steps_of(job, 4));
      trainers[4].reset();
      trainers[3].reset();
      Tensors all = values_of(*nets[3]);
      for (auto& value : values_of(*nets[4])) all.push_back(value);
      return all;
    });
    expect_all(found, found.front(), 0);
  }
}

TEST_P(SeveralModels, AnEvaluationOfOneDoesNotDisturbAnOpenGraphOfIt) {
  on_workers(setup_of(GetParam(), 2), [](Job& job) {
    Pair pair = pair_of(job);
    Trainer generator(job, pair.generator, slow_rule());
    Trainer discriminator(job, pair.discriminator, slow_rule());
    for (int step = 0; step < 3; ++step) {
      discriminator.step([&] { return pair.real_loss(job.rank(), step) + pair.made_loss(job.rank(), step); });
      const Tensor own = pair.generator->norm->running_mean.clone();
      const auto sums = generator.evaluate(
          [&](Sums& mine) { mine["mean"] = pair.generator->norm->running_mean.sum().item<double>(); });
      if (job.is_chief()) {
        EXPECT_NEAR(sums.at("mean"), 2 * own.sum().item<double>(), 1e-9);
      }
      EXPECT_TRUE(pair.generator->norm->running_mean.equal(own));
      generator.step([&] { return pair.generator_loss(); });
    }
    discriminator.finish_epoch();
    generator.finish_epoch();
    return 0;
  });
}

TEST_P(SeveralModels, AParameterOfAnotherTrainerIsRefusedByItsNameAndTheOthersGoOn) {
  on_workers(setup_of(GetParam(), 2), [](Job& job) {
    Net net = net_of(job);
    Net other = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    torch::nn::Sequential both(net->fc2, torch::nn::Linear(3, 3));
    try {
      const Trainer refused(job, both, sgd_rule());
      ADD_FAILURE() << "nothing was thrown";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("the parameter 0.weight is trained by another Trainer"));
    }
    EXPECT_THROW(const Trainer refused(job, net, sgd_rule()), InvalidArgument);
    Trainer second(job, other, sgd_rule());
    for (int step = 0; step < 3; ++step) {
      trainer.step([&] { return loss_of(net, {0, 4}); });
      second.step([&] { return loss_of(other, {0, 4}); });
    }
    trainer.finish_epoch();
    second.finish_epoch();
    return 0;
  });
}

// Who waits in the finish_epoch() of one model is not waited for in another.
TEST(SeveralModelsWithServers, WorkersMayHaveDifferentAmountsOfData) {
  for (const char* strategy : {"ps-sync", "ps-async", "ps-ssp", "ps-local"}) {
    for (const bool shared : {true, false}) {
      SCOPED_TRACE(fmt::format("{}, shared memory {}", strategy, shared));
      const auto found = on_workers(setup_of(strategy, 3, shared, 2), [](Job& job) {
        Pair pair = pair_of(job);
        Trainer generator(job, pair.generator, slow_rule());
        Trainer discriminator(job, pair.discriminator, slow_rule());
        for (int epoch = 0; epoch < 2; ++epoch) {
          for (int step = 0; step < 3 + 4 * job.rank(); ++step) {
            discriminator.step(
                [&] { return pair.real_loss(job.rank(), step) + pair.made_loss(job.rank(), step); });
            generator.step([&] { return pair.generator_loss(); });
          }
          if (job.rank() == 1) generator.finish_epoch();  // the order makes no difference
          discriminator.finish_epoch();
          if (job.rank() != 1) generator.finish_epoch();
        }
        discriminator.finish_epoch();
        generator.finish_epoch();
        return pair.values();
      });
      expect_all(found, found.front(), 0);
    }
  }
}

// All train to the same step: one that had no more data would leave the others without a backup, and they
// might wait for each other in different models.
TEST(SeveralModelsWithServers, SomeWorkersMayBeBackups) {
  auto setup = setup_of("ps-sync", 3);
  setup.configure = [](Config& config) {
    config.strategy = "ps-sync";
    config.replicas_to_aggregate = 2;
  };
  on_workers(setup, [](Job& job) {
    Pair pair = pair_of(job);
    Trainer generator(job, pair.generator, slow_rule(), {.max_steps = 20});
    Trainer discriminator(job, pair.discriminator, slow_rule(), {.max_steps = 20});
    for (int step = 0; !discriminator.done() || !generator.done(); ++step) {
      const bool made =
          discriminator
              .step([&] { return pair.real_loss(job.rank(), step) + pair.made_loss(job.rank(), step); })
              .goes_on;
      generator.step([&] {
        if (!made) pair.made_loss(job.rank(), step);  // for its graph: that of the last step is used up
        return pair.generator_loss();
      });
    }
    EXPECT_EQ(discriminator.steps(), 20);
    EXPECT_EQ(generator.steps(), 20);
    return 0;
  });
}

// A model that can't be trained takes nobody's place.
TEST(SeveralModelsWithServers, OneThatIsRefusedLeavesRoomForTheNext) {
  on_workers(setup_of("ps-sync", 2, true, 2), [](Job& job) {
    Net net = net_of(job);
    EXPECT_THROW(const Trainer refused(job, net, sgd_rule(), {.clip_norm = -1}), InvalidArgument);
    EXPECT_THROW(const Trainer refused(job, net, sgd_rule(), {.accumulate = 0}), InvalidArgument);
    Trainer trainer(job, net, sgd_rule());
    for (int step = 0; step < 3; ++step) trainer.step([&] { return loss_of(net, {0, 4}); });
    trainer.finish_epoch();
    return 0;
  });
}

TEST(SeveralModelsWithServers, TablesBesideThemKeepWorking) {
  for (const char* strategy : {"ps-sync", "ps-async"}) {
    on_workers(setup_of(strategy, 2, true, 2), [](Job& job) {
      ShardedEmbedding table(job, {.name = "rows", .width = 6, .optimizer = optim::SGD({.lr = 0.05})});
      Net first = net_of(job);
      Net second = net_of(job);
      Trainer one(job, first, optim::SGD({.lr = 0.05}));
      Trainer two(job, second, optim::SGD({.lr = 0.05}));
      const Tensor ids = torch::arange(4) + 3 * job.rank();
      for (int step = 0; step < 5; ++step) {
        one.step([&] { return first(table(ids)).square().mean(); });
        two.step([&] { return (second(table(ids)) - 1).square().mean(); });
      }
      one.finish_epoch();
      two.finish_epoch();
      job.context().barrier("done", "worker");
      EXPECT_EQ(table->size().rows, 7U);
      return 0;
    });
  }
}

TEST(SeveralModelsErrors, AGraphThatIsOlderThanAnUpdateOfItsModelIsRefusedAsByTorch) {
  Job job(Config{});
  Pair pair;
  Trainer generator(job, pair.generator, slow_rule());
  pair.made_loss(0, 0);
  generator.step([&] { return pair.generator(random({kPictures, 4, 1, 1}, 1)).square().mean(); });
  EXPECT_THROW(generator.step([&] { return pair.generator_loss(); }), c10::Error);
}

}  // namespace
}  // namespace muster::detail
