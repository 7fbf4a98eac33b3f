// What surrounds the steps: hooks, evaluation, metrics, changes from outside, errors, and the life of a
// Trainer.

#include <atomic>
#include <mutex>

#include "muster/base/error.h"
#include "muster/seed.h"
#include "muster/testing/message_of.h"
#include "muster/train/trainer_test.h"
#include "muster/trainer.h"

namespace muster::detail {
namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::StartsWith;

class TrainerUse : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(Setups, TrainerUse, ::testing::Values(Setup{1}, Setup{2}, Setup{3}, Setup{2, false}),
                         setup_name);

// A worker's part of a batch of eight.
Batch part(const Job& job, int step) {
  const int64_t begin = 8 * step + 8 * job.rank() / job.size();
  return {begin, 8 * step + 8 * (job.rank() + 1) / job.size()};
}

TEST_P(TrainerUse, HooksRunBeforeTheStepsThatAWorkerComputesAndAfterAllUpdates) {
  on_workers(GetParam(), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule(), {.accumulate = 2});
    std::string calls;
    trainer.before_step([&] { calls += fmt::format("a{} ", trainer.steps()); });
    trainer.before_step([&] { calls += "b "; });
    trainer.after_step([&] { calls += fmt::format("c{} ", trainer.steps()); });
    trainer.after_step([&] { calls += "d "; });
    for (int i = 0; i < (job.is_chief() ? 4 : 2); ++i) {
      trainer.step([&] {
        calls += "loss ";
        return loss_of(net, {0, 4});
      });
    }
    trainer.finish_epoch();
    EXPECT_EQ(calls,
              job.is_chief() ? "a0 b loss loss c1 d a1 b loss loss c2 d " : "a0 b loss loss c1 d c2 d ");
    return calls;
  });
}

TEST_P(TrainerUse, HooksMayUseTheTrainer) {
  on_workers(GetParam(), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    double found = 0;
    trainer.after_step([&] {
      trainer.change_parameters([&] { net->fc2->bias.fill_(trainer.steps()); });
      found = trainer.evaluate([&](Sums& sums) { sums["bias"] = net->fc2->bias[0].item<double>(); })["bias"];
    });
    for (int step = 0; step < 3; ++step) trainer.step([&] { return loss_of(net, part(job, step)); });
    EXPECT_DOUBLE_EQ(found, 3.0 * job.size());
    return found;
  });
}

TEST_P(TrainerUse, AnEvaluationAddsUpOverAllWorkersWithoutGradientsAndRestoresTheModes) {
  on_workers(GetParam(), [](Job& job) {
    torch::nn::Sequential net(torch::nn::Linear(6, 3), torch::nn::Dropout(0.5), torch::nn::BatchNorm1d(3));
    net[2]->eval();  // its statistics are kept
    Trainer trainer(job, net, sgd_rule());
    auto sums = trainer.evaluate([&](Sums& mine) {
      EXPECT_FALSE(net->is_training());
      EXPECT_FALSE(net[1]->is_training());
      EXPECT_FALSE(net->forward(Batch(0, 4).x).requires_grad());
      mine["count"] += job.rank() + 1;
      mine[fmt::format("of {}", job.rank())] = 0.5;
    });
    const int workers = job.size();
    EXPECT_EQ(sums.size(), static_cast<size_t>(workers) + 1);
    EXPECT_DOUBLE_EQ(sums["count"], workers * (workers + 1) / 2.0);
    for (int i = 0; i < workers; ++i) EXPECT_DOUBLE_EQ(sums[fmt::format("of {}", i)], 0.5);
    EXPECT_TRUE(net->is_training());
    EXPECT_TRUE(net[1]->is_training());
    EXPECT_FALSE(net[2]->is_training());
    EXPECT_TRUE(torch::GradMode::is_enabled());
    net->eval();
    trainer.evaluate([](Sums&) {});
    EXPECT_FALSE(net->is_training());
    return 0;
  });
}

TEST_P(TrainerUse, TheChiefsBuffersReachAllWorkersBeforeAStepAndAnEvaluation) {
  torch::nn::BatchNorm1d alone(6);
  Tensors expected;  // after each of the chief's batches
  for (int step = 0; step < 4; ++step) {
    expected.push_back(alone->running_var.clone());
    alone(random({5, 6}, static_cast<uint64_t>(step)) * 2);
  }
  on_workers(GetParam(), [&](Job& job) {
    torch::nn::BatchNorm1d norm(6);
    Trainer trainer(job, norm, sgd_rule());
    for (size_t step = 0; step < 4; ++step) {
      trainer.step([&] {
        expect_near({norm->running_var}, {expected[step]});
        EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), static_cast<int64_t>(step));
        return norm(random({5, 6}, step + 50 * static_cast<uint64_t>(job.rank())) * (2 + job.rank()))
            .square()
            .mean();
      });
    }
    trainer.evaluate([&](Sums&) { expect_near({norm->running_var}, {alone->running_var}); });
    return 0;
  });
}

TEST_P(TrainerUse, MetricsAreOfAllWorkersAndSplitTheTime) {
  on_workers(GetParam(), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, optim::SGD({.lr = 0.5}),
                    {.schedule = step_decay(samples(8 * job.size()), 0.1)});
    const auto step = [&](double loss) { trainer.step([&] { return loss_of(net, {0, 4}) * 0 + loss; }, 4); };
    const auto check_time = [&] {
      const Metrics now = trainer.metrics();
      for (const auto& part : {now.compute, now.wait, now.update}) EXPECT_GE(part.count(), 0);
      EXPECT_NEAR((now.compute + now.wait + now.update).count(), now.total.count(), 1e-9);
      EXPECT_GT(now.total.count(), 0);
    };
    for (int i = 0; i < 3; ++i) step(job.rank() + i);
    const Metrics metrics = trainer.metrics();
    EXPECT_EQ(metrics.steps, 3);
    EXPECT_EQ(metrics.samples, 12 * job.size());
    EXPECT_NEAR(metrics.loss, 2 + (job.size() - 1) / 2.0, 1e-6);
    EXPECT_DOUBLE_EQ(metrics.learning_rate, 0.05);
    EXPECT_DOUBLE_EQ(trainer.learning_rate(), 0.05);
    EXPECT_NEAR(metrics.samples_per_second, 12 * job.size() / metrics.total.count(), 1e-3);
    EXPECT_THAT(metrics.to_string(), AllOf(StartsWith("loss "), HasSubstr(" samples/s  compute ")));
    check_time();
    trainer.reset_metrics();
    EXPECT_EQ(trainer.metrics().steps, 0);
    EXPECT_EQ(trainer.metrics().samples, 0);
    EXPECT_EQ(trainer.metrics().total.count(), 0);
    if (job.is_chief()) step(7);
    trainer.finish_epoch();
    EXPECT_EQ(trainer.metrics().steps, 1);
    EXPECT_EQ(trainer.metrics().samples, 4);
    EXPECT_NEAR(trainer.metrics().loss, 7, 1e-6);
    check_time();
    EXPECT_EQ(trainer.steps(), 4);
    return 0;
  });
}

TEST_P(TrainerUse, ParametersAreChangedOnceForEachCopyAndAllSeeIt) {
  std::atomic<int> calls{0};
  const auto found = on_workers(GetParam(), [&](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    trainer.change_parameters([&] { net->fc1->weight.mul_(2); });
    trainer.step([&] { return loss_of(net, part(job, 0)); }, part(job, 0).size());
    trainer.change_parameters([&] {
      ++calls;
      net->fc1->weight.mul_(3);
    });
    trainer.step([&] { return loss_of(net, part(job, 1)); }, part(job, 1).size());
    return values_of(*net);
  });
  EXPECT_EQ(calls, GetParam().shared_memory ? 1 : GetParam().workers);
  Net net;
  fill(*net);
  const auto expected = plain_sgd(*net, 2, [&](int step) {
    {
      const torch::NoGradGuard no_grad;
      net->fc1->weight.mul_(2 + step);
    }
    return loss_of(net, {8 * step, 8 * step + 8});
  });
  expect_all(found, expected);
}

TEST_P(TrainerUse, AfterwardsTheParametersAreTheWorkersOwnAndCanBeTrainedAgain) {
  const auto found = on_workers(GetParam(), [](Job& job) {
    Net net = net_of(job);
    for (int run = 0; run < 2; ++run) {
      Trainer trainer(job, net, sgd_rule());
      for (int step = 0; step < 3; ++step)
        trainer.step([&] { return loss_of(net, part(job, 3 * run + step)); }, part(job, step).size());
    }
    const auto result = values_of(*net);
    job.communicator().barrier();
    const torch::NoGradGuard no_grad;
    net->fc1->weight.fill_(job.rank());
    job.communicator().barrier();
    EXPECT_TRUE(net->fc1->weight.eq(job.rank()).all().item<bool>());
    job.communicator().barrier();
    return result;
  });
  Net net;
  fill(*net);
  Tensors expected;
  for (int run = 0; run < 2; ++run) {  // with a momentum of its own
    expected = plain_sgd(*net, 3, [&](int step) {
      const int64_t begin = 8 * (3 * run + step);
      return loss_of(net, {begin, begin + 8});
    });
  }
  expect_all(found, expected);
}

TEST_P(TrainerUse, TensorsOfAStepOutliveTheJob) {
  const auto kept = on_workers(GetParam(), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    Tensor large;
    trainer.step([&] {
      large = torch::full({100'000}, 3.0F);
      return loss_of(net, {0, 4});
    });
    return large;
  });
  for (const auto& tensor : kept) EXPECT_FLOAT_EQ(tensor.sum().item<float>(), 300'000);
}

TEST(TrainerErrors, AnExceptionInAStepLeavesATrainerThatSaysSo) {
  Job job(Config{});
  Net net;
  Trainer trainer(job, net, sgd_rule());
  trainer.step([&] { return loss_of(net, {0, 4}); });
  EXPECT_THROW(trainer.step([]() -> Tensor { throw std::runtime_error("no"); }), std::runtime_error);
  const auto unusable = [](const auto& call) {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "no");
    }
  };
  unusable([&] { trainer.step([&] { return loss_of(net, {0, 4}); }); });
  unusable([&] { trainer.finish_epoch(); });
  unusable([&] { trainer.evaluate([](Sums&) {}); });
  unusable([&] { trainer.change_parameters([] {}); });
}

TEST(TrainerErrors, AnExceptionInAHookIsOneInTheStep) {
  Job job(Config{});
  Net net;
  Trainer trainer(job, net, sgd_rule());
  trainer.after_step([] { throw std::runtime_error("no"); });
  EXPECT_THROW(trainer.step([&] { return loss_of(net, {0, 4}); }), std::runtime_error);
  EXPECT_THROW(trainer.step([&] { return loss_of(net, {0, 4}); }), std::runtime_error);
}

TEST(TrainerErrors, OneWorkersExceptionIsTheReasonForAll) {
  const auto errors = errors_of({3}, [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    for (int step = 0;; ++step) {
      trainer.step([&] {
        if (job.rank() == 1 && step == 3) throw std::runtime_error("no more rows");
        return loss_of(net, {0, 4});
      });
    }
  });
  EXPECT_THAT(errors, Each(HasSubstr("no more rows")));
}

// A worker that caught it would not come where the others wait.
TEST(TrainerErrors, AnExceptionInWhatAllWorkersDoTogetherIsFinalAndTheReasonForAll) {
  for (const bool evaluates : {true, false}) {
    const auto errors = errors_of({2}, [&](Job& job) {
      Net net = net_of(job);
      Trainer trainer(job, net, sgd_rule());
      trainer.step([&] { return loss_of(net, {0, 4}); });
      const auto fail_on_chief = [&] {
        if (job.is_chief()) throw std::runtime_error("no such picture");
      };
      try {
        if (evaluates) trainer.evaluate([&](Sums&) { fail_on_chief(); });
        if (!evaluates) trainer.change_parameters(fail_on_chief);
      } catch (const std::runtime_error& error) {
        if (std::string(error.what()) != "no such picture") throw;
      }
      trainer.step([&] { return loss_of(net, {0, 4}); });
    });
    EXPECT_THAT(errors, Each(HasSubstr("no such picture")));
  }
  Job job(Config{});
  Net net;
  Trainer trainer(job, net, sgd_rule());
  EXPECT_THROW(trainer.evaluate([](Sums&) { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_TRUE(trainer.step([&] { return loss_of(net, {0, 4}); })) << "alone nobody waits";
}

TEST(Seed, TheChiefDrawsAsAloneAndTheOthersOtherwiseAndTheSameInEveryRun) {
  const auto draws = [](uint64_t with) {
    return on_workers({.workers = 3}, [&](Job& job) {
      static std::mutex one_at_a_time;  // the workers of this test share a generator
      const std::scoped_lock lock(one_at_a_time);
      seed(job, with);
      return torch::randn({4});
    });
  };
  const auto found = draws(7);
  torch::manual_seed(7);
  EXPECT_TRUE(found[0].equal(torch::randn({4})));
  EXPECT_FALSE(found[1].equal(found[0]));
  EXPECT_FALSE(found[2].equal(found[0]));
  EXPECT_FALSE(found[2].equal(found[1]));
  const auto again = draws(7);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(again[i].equal(found[i]));
  EXPECT_FALSE(draws(8)[1].equal(found[1]));
}

TEST(TrainerErrors, ALossIsOneNumber) {
  const auto error = [](const Trainer::Loss& loss) {
    Job job(Config{});
    Net net;
    Trainer trainer(job, net, sgd_rule());
    return message_of<InvalidArgument>([&] { trainer.step(loss); });
  };
  EXPECT_THAT(error([] { return torch::ones({3, 2}); }), HasSubstr("the loss, one number; it returned 6"));
  EXPECT_THAT(error([] { return Tensor(); }), HasSubstr("the loss, one number; it returned no tensor"));
}

TEST(TrainerErrors, OptionsThatMakeNoSenseAreRefused) {
  const auto error = [](const TrainerOptions& options) {
    Job job(Config{});
    Net net;
    return message_of<InvalidArgument>([&] { const Trainer trainer(job, net, sgd_rule(), options); });
  };
  EXPECT_THAT(error({.accumulate = 0}), HasSubstr("accumulate is 0; it must be at least 1"));
  EXPECT_THAT(error({.clip_norm = -1}), HasSubstr("clip_norm is -1; expected a number that is not"));
  EXPECT_THAT(error({.max_steps = -2}), HasSubstr("max_steps is -2; expected a number that is not"));
  EXPECT_THAT(error({.loss_scale = -8}), HasSubstr("loss_scale is -8; expected a number that is not"));
  Job job(Config{});
  Net net;
  Trainer trainer(job, net, sgd_rule(), {.schedule = constant_rate()});
  EXPECT_THAT(message_of<InvalidArgument>([&] { trainer.step([&] {
                                                  return loss_of(net, {0, 4});
                                                }); }),
              HasSubstr("give Trainer::step() the size of the batch"));
}

TEST(TrainerPrecision, Bf16Trains) {
  on_workers({.workers = 2, .precision = "bf16"}, [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    std::vector<double> losses;
    for (int step = 0; step < 40; ++step) {
      trainer.step([&] {
        const auto out = net(Batch(0, 32).x);
        EXPECT_EQ(out.scalar_type(), torch::kBFloat16);
        return torch::mse_loss(out.to(torch::kFloat32), Batch(0, 32).x.slice(1, 0, 3));
      });
      losses.push_back(trainer.metrics().loss);
    }
    EXPECT_EQ(net->fc1->weight.scalar_type(), torch::kFloat32);
    EXPECT_LT(losses.back(), losses.front() / 2);
    return 0;
  });
}

TEST(TrainerPrecision, Fp16TrainsOrNamesBf16) {
  Config config;
  config.precision = "fp16";
  Job job(config);
  Net net;
  const auto error = message_of<InvalidArgument>([&] {
    Trainer trainer(job, net, sgd_rule());
    double loss = 0;
    for (int step = 0; step < 40; ++step) {
      trainer.step([&] { return net(Batch(0, 32).x).to(torch::kFloat32).square().mean(); });
      if (step == 0) loss = trainer.metrics().loss;
    }
    EXPECT_LT(trainer.metrics().loss, loss / 2);
  });
  EXPECT_THAT(error, ::testing::AnyOf("", HasSubstr("use --precision bf16")));
}

}  // namespace
}  // namespace muster::detail
