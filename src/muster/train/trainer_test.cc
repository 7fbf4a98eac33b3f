// Steps of the Trainer: N workers do what one process does with the whole batch, however the batches are cut.

#include "muster/trainer.h"

#include "muster/train/trainer_test.h"

namespace muster::detail {
namespace {

using namespace testing;
using torch::optim::AdamOptions;
using torch::optim::SGDOptions;

class TrainerOn : public ::testing::TestWithParam<Setup> {
 protected:
  int workers() const { return GetParam().workers; }
};
INSTANTIATE_TEST_SUITE_P(Setups, TrainerOn,
                         ::testing::Values(Setup{1}, Setup{2}, Setup{3}, Setup{2, false}, Setup{3, false}),
                         setup_name);

constexpr int64_t kGlobalBatch = 12;  // of all workers

// The part of a worker of the step's batch.
Batch part(int step, int worker, int workers) {
  const int64_t mine = kGlobalBatch / workers;
  const int64_t begin = step * kGlobalBatch + worker * mine;
  return {begin, begin + mine};
}
Batch whole(int step) {
  return part(step, 0, 1);
}

// Each worker trains with its parts.
std::vector<Tensors> train(const Setup& setup, const optim::Optimizer& rule, int steps,
                           const TrainerOptions& options = {}) {
  return on_workers(setup, [&](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, rule, options);
    for (int step = 0; step < steps; ++step) {
      const Batch batch = part(step, job.rank(), job.size());
      EXPECT_TRUE(trainer.step([&] { return loss_of(net, batch); }, batch.size()));
    }
    EXPECT_EQ(trainer.steps(), steps / options.accumulate);
    return values_of(*net);
  });
}

Tensors plain_net(int steps, const std::function<Tensor(Net&, int)>& loss,
                  const std::function<void(int, torch::optim::SGD&)>& before_update = {}) {
  Net net;
  fill(*net);
  return plain_sgd(
      *net, steps, [&](int step) { return loss(net, step); }, before_update);
}
Tensors plain_net(int steps) {
  return plain_net(steps, [](Net& net, int step) { return loss_of(net, whole(step)); });
}

TEST_P(TrainerOn, IsOnePlainLoopWithTheWholeBatchForSgd) {
  expect_all(train(GetParam(), sgd_rule(), 8), plain_net(8));
}

TEST_P(TrainerOn, IsOnePlainLoopWithTheWholeBatchForAdam) {
  Net net;
  fill(*net);
  expect_all(train(GetParam(), optim::Adam({.lr = 0.01}), 8),
             plain<torch::optim::Adam>(*net, torch::optim::AdamOptions(0.01), 8,
                                       [&](int step) { return loss_of(net, whole(step)); }));
}

TEST_P(TrainerOn, AStepGivesTheLossOfThisWorkersBatch) {
  on_workers(GetParam(), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    for (int step = 0; step < 3; ++step) {
      const Batch batch = part(step, job.rank(), job.size());
      double computed = 0;
      const Step taken = trainer.step(
          [&] {
            const Tensor loss = loss_of(net, batch);
            computed = loss.item<double>();
            return loss;
          },
          batch.size());
      EXPECT_TRUE(taken.goes_on);
      EXPECT_EQ(taken.loss, computed);
    }
    return 0;
  });
}

TEST_P(TrainerOn, BuffersAreTheChiefsAfterAStepUnlessTheOptionsSayOtherwise) {
  for (const bool broadcast : {true, false}) {
    const auto means = on_workers(GetParam(), [&](Job& job) {
      torch::nn::BatchNorm1d norm(3);
      Trainer trainer(job, norm, sgd_rule(), {.broadcast_buffers = broadcast});
      trainer.step(
          [&] {
            return norm(random({8, 3}, static_cast<uint64_t>(job.rank()))).square().mean();
          },
          8);
      return norm->running_mean.clone();
    });
    for (int worker = 1; worker < workers(); ++worker)
      EXPECT_EQ(torch::equal(means[static_cast<size_t>(worker)], means[0]), broadcast) << worker;
  }
}

TEST_P(TrainerOn, AccumulatedBatchesAreAveraged) {
  const auto expected = plain_net(2, [](Net& net, int step) {
    return loss_of(net, {step * 3 * kGlobalBatch, (step + 1) * 3 * kGlobalBatch});
  });
  expect_all(train(GetParam(), sgd_rule(), 6, {.accumulate = 3}), expected);
}

TEST_P(TrainerOn, ClippingIsTorchsOnTheAveragedGradient) {
  const auto expected = plain_net(
      8, [](Net& net, int step) { return loss_of(net, whole(step)); },
      [](int, torch::optim::SGD& optimizer) {
        const auto norm = torch::nn::utils::clip_grad_norm_(optimizer.param_groups()[0].params(), 0.3);
        EXPECT_GT(norm, 0.3);
      });
  expect_all(train(GetParam(), sgd_rule(), 8, {.clip_norm = 0.3}), expected);
  expect_all(train(GetParam(), sgd_rule(), 8, {.clip_norm = 1e6}), plain_net(8));
}

TEST_P(TrainerOn, ALossScaleChangesNothingForFloat32) {
  expect_all(train(GetParam(), sgd_rule(), 8, {.loss_scale = 1024}), plain_net(8));
}

TEST_P(TrainerOn, AScheduleChangesTheRateByTheSamples) {
  const Schedule schedule =
      warmup(samples(3 * kGlobalBatch), step_decay(epochs(2), 0.5), 0.25);  // an epoch is a step here
  const auto expected = plain_net(
      8, [](Net& net, int step) { return loss_of(net, whole(step)); },
      [&](int step, torch::optim::SGD& optimizer) {
        static_cast<SGDOptions&>(optimizer.param_groups()[0].options())
            .lr(0.1 * schedule({.samples = step * kGlobalBatch, .samples_per_epoch = kGlobalBatch}));
      });
  expect_all(train(GetParam(), sgd_rule(), 8, {.samples_per_epoch = kGlobalBatch, .schedule = schedule}),
             expected);
}

// Each worker's batches in the epochs: [epoch][worker] gives their sizes. The rows come one after the other.
using Shards = std::vector<std::vector<std::vector<int64_t>>>;

// The rows of the batch that is number `round` of the epoch for this worker; none when it has fewer.
Batch batch_in(const Shards& shards, size_t epoch, size_t worker, size_t round) {
  int64_t begin = 0;
  for (size_t e = 0; e <= epoch; ++e) {
    for (size_t w = 0; w < shards[e].size(); ++w) {
      for (size_t r = 0; r < shards[e][w].size(); ++r) {
        const int64_t size = shards[e][w][r];
        if (e == epoch && w == worker && r == round) return {begin, begin + size};
        begin += size;
      }
    }
  }
  return {0, 0};
}

// Averages over whoever brings something, `accumulate` batches of each at once.
std::vector<Tensor> losses_of(Net& net, const Shards& shards, size_t accumulate) {
  std::vector<Tensor> losses;
  for (size_t epoch = 0; epoch < shards.size(); ++epoch) {
    for (size_t first = 0;; first += accumulate) {
      Tensor sum = torch::zeros({});
      int64_t rows = 0;
      for (size_t worker = 0; worker < shards[epoch].size(); ++worker) {
        for (size_t round = first; round < first + accumulate; ++round) {
          const Batch batch = batch_in(shards, epoch, worker, round);
          if (batch.size() == 0) continue;
          sum = sum + loss_of(net, batch) * batch.size();
          rows += batch.size();
        }
      }
      if (rows == 0) break;
      losses.push_back(sum / rows);
    }
  }
  return losses;
}

void check_shards(bool shared_memory, const Shards& shards, int accumulate = 1) {
  const Setup setup = {static_cast<int>(shards[0].size()), shared_memory};
  Net counting;
  const auto steps = static_cast<int>(losses_of(counting, shards, static_cast<size_t>(accumulate)).size());
  const auto expected = plain_net(steps, [&](Net& net, int step) {
    return losses_of(net, shards, static_cast<size_t>(accumulate))[static_cast<size_t>(step)];
  });
  int64_t rows = 0;
  for (const auto& epoch : shards) {
    for (const auto& shard : epoch) {
      for (const int64_t size : shard) rows += size;
    }
  }
  expect_all(on_workers(setup,
                        [&](Job& job) {
                          Net net = net_of(job);
                          Trainer trainer(job, net, sgd_rule(), {.accumulate = accumulate});
                          const auto worker = static_cast<size_t>(job.rank());
                          for (size_t epoch = 0; epoch < shards.size(); ++epoch) {
                            for (size_t i = 0; i < shards[epoch][worker].size(); ++i) {
                              const Batch batch = batch_in(shards, epoch, worker, i);
                              trainer.step([&] { return loss_of(net, batch); }, batch.size());
                            }
                            trainer.finish_epoch();
                          }
                          EXPECT_EQ(trainer.steps(), steps);
                          EXPECT_EQ(trainer.metrics().samples, rows);
                          return values_of(*net);
                        }),
             expected);
}

class TrainerShards : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(SharedMemory, TrainerShards, ::testing::Bool());

TEST_P(TrainerShards, BatchesOfDifferentSizesCountByTheirSamples) {
  check_shards(GetParam(), {{{8, 3, 5}, {2, 7, 5}}});
  check_shards(GetParam(), {{{1, 6}, {4, 9}, {7, 2}}});
}

TEST_P(TrainerShards, WorkersMayHaveDifferentNumbersOfBatchesInSeveralEpochs) {
  check_shards(GetParam(), {{{4, 4, 4}, {4}}, {{4}, {4, 4}}, {{4, 4}, {4, 4}}});
}

TEST_P(TrainerShards, AShardMayBeEmptyAlsoTheChiefs) {
  check_shards(GetParam(), {{{4, 3}, {}, {2}}, {{2}, {6, 1}, {}}});
  check_shards(GetParam(), {{{}, {3, 5}, {4}}, {{2}, {}, {6, 1}}});
}

TEST_P(TrainerShards, AnEpochWithoutAnyDataIsNone) {
  check_shards(GetParam(), {{{}, {}}, {{2, 3}, {5}}, {{}, {}}, {{4}, {1}}});
}

TEST_P(TrainerShards, FinishingTheEpochInTheMiddleOfAnAccumulationLosesNothing) {
  check_shards(GetParam(), {{{4, 4, 4, 4}, {4, 4}}, {{4, 4}, {4, 4, 4, 4, 4}}, {{}, {4}}}, 3);
}

TEST_P(TrainerShards, WithoutSamplesBatchesCountTheSame) {
  const auto expected = plain_net(1, [](Net& net, int) {
    return (loss_of(net, {0, 8}) + loss_of(net, {8, 10})) / 2;
  });
  expect_all(on_workers({2, GetParam()},
                        [](Job& job) {
                          Net net = net_of(job);
                          Trainer trainer(job, net, sgd_rule());
                          const Batch batch = job.is_chief() ? Batch(0, 8) : Batch(8, 10);
                          trainer.step([&] { return loss_of(net, batch); });
                          EXPECT_EQ(trainer.metrics().samples, 0);
                          return values_of(*net);
                        }),
             expected);
}

TEST_P(TrainerShards, MaxStepsEndsAllWorkersAtTheSameStepAlsoThoseThatHaveFinishedTheEpoch) {
  const auto steps = on_workers({3, GetParam()}, [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule(), {.max_steps = 5, .accumulate = 2});
    int computed = 0;
    const auto loss = [&] {
      ++computed;
      return loss_of(net, {0, 4});
    };
    for (int i = 0; i < (job.rank() == 1 ? 3 : 1000) && trainer.step(loss); ++i) EXPECT_LT(i, 10);
    trainer.finish_epoch();
    EXPECT_TRUE(trainer.done());
    EXPECT_EQ(computed, job.rank() == 1 ? 3 : 10);
    const Tensors before = values_of(*net);
    EXPECT_FALSE(trainer.step(loss));
    expect_near(values_of(*net), before, 0);
    EXPECT_EQ(computed, job.rank() == 1 ? 3 : 10);
    return trainer.steps();
  });
  EXPECT_THAT(steps, ::testing::Each(5));
}

TEST_P(TrainerShards, AnInfiniteGradientOfOneWorkerIsSkippedByAllAndHalvesTheScale) {
  const auto expected =
      plain_net(4, [](Net& net, int step) { return step == 1 ? Tensor() : loss_of(net, whole(step)); });
  expect_all(
      on_workers({2, GetParam()},
                 [](Job& job) {
                   Net net = net_of(job);
                   Trainer trainer(job, net, sgd_rule(), {.loss_scale = 1024});
                   std::vector<double> scales;
                   for (int step = 0; step < 4; ++step) {
                     trainer.step([&] {
                       auto loss = loss_of(net, part(step, job.rank(), 2));
                       if (step == 1 && job.rank() == 1) loss = loss * INFINITY;
                       loss.register_hook([&](const Tensor& it) { scales.push_back(it.item<double>()); });
                       return loss;
                     });
                     EXPECT_EQ(trainer.metrics().skipped, step == 0 ? 0 : 1);
                   }
                   EXPECT_THAT(scales, ::testing::ElementsAre(1024, 1024, 512, 512));
                   return values_of(*net);
                 }),
      expected);
}

}  // namespace
}  // namespace muster::detail
