#include "muster/embedding.h"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/ps/table/table_service_test.h"
#include "muster/train/trainer_test.h"

namespace muster::detail {
namespace {

using torch::Tensor;
using namespace muster::detail::testing;

std::shared_ptr<ShardedEmbeddingImpl> over(TableClient& client, const EmbeddingOptions& options) {
  return std::make_shared<ShardedEmbeddingImpl>(client, options);
}

Tensor batch_of(int step) {
  return torch::randint(0, 40, {6, 5}, torch::make_generator<at::CPUGeneratorImpl>(step), torch::kInt64);
}

// Something that is not linear in the rows, with rows that are in the batch several times.
Tensor loss_of(const Tensor& rows, int step) {
  return (rows.sum(1).tanh() * random({6, rows.size(2)}, 1000 + static_cast<uint64_t>(step))).sum();
}

TEST(ShardedEmbedding, TrainsAsAnEmbeddingOfTorchDoes) {
  const TableServers servers(2);
  TableClient client(servers.options());
  ShardedEmbedding table(
      over(client, {.name = "items", .width = 8, .optimizer = optim::SGD({.lr = 0.1}), .scale = 1}));
  torch::nn::Embedding expected(torch::nn::EmbeddingOptions(40, 8));
  const Tensor all = torch::arange(40);
  {
    const torch::NoGradGuard no_grad;
    expected->weight.copy_(table(all));
  }
  torch::optim::SGD optimizer(expected->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 50; ++step) {
    const Tensor loss = loss_of(table(batch_of(step)), step);
    loss.backward();
    optimizer.zero_grad();
    const Tensor other = loss_of(expected(batch_of(step)), step);
    other.backward();
    optimizer.step();
    ASSERT_NEAR(loss.item<double>(), other.item<double>(), 1e-5);
  }
  const torch::NoGradGuard no_grad;
  EXPECT_LT((table(all) - expected->weight).abs().max().item<double>(), 1e-6);
  EXPECT_EQ(table->size().rows, 40u);
}

TEST(ShardedEmbedding, RowsHaveTheShapeOfTheirIds) {
  const TableServers servers(1);
  TableClient client(servers.options());
  ShardedEmbedding table(over(client, {.name = "items", .width = 3}));
  EXPECT_EQ(table(torch::tensor({1, 2}, torch::kInt64)).sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(table(torch::zeros({2, 0, 4}, torch::kInt64)).sizes(), (std::vector<int64_t>{2, 0, 4, 3}));
  EXPECT_EQ(table(torch::tensor(7, torch::kInt64)).sizes(), (std::vector<int64_t>{3}));
  const Tensor ids = batch_of(0);
  EXPECT_TRUE(table(ids.t()).equal(table(ids).transpose(0, 1)));
  EXPECT_THROW(table(torch::zeros({2})), InvalidArgument);
  EXPECT_THROW(table(torch::zeros({2}, torch::kInt32)), InvalidArgument);
}

TEST(ShardedEmbedding, WithoutGradientsNothingIsPushed) {
  const TableServers servers(1);
  TableClient client(servers.options());
  ShardedEmbedding table(over(client, {.name = "items", .width = 3}));
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(table(batch_of(0)).requires_grad());
  }
  EXPECT_TRUE(table(batch_of(0)).requires_grad()) << "and nothing went back through it";
  EXPECT_EQ(table->size().rows, 0u);
}

TEST(ShardedEmbedding, AForwardPassIsPushedOnce) {
  const TableServers servers(1);
  TableClient client(servers.options());
  ShardedEmbedding table(
      over(client, {.name = "items", .width = 1, .optimizer = optim::SGD({.lr = 1}), .scale = 0}));
  const Tensor ids = torch::tensor({3, 3, 4}, torch::kInt64);
  const Tensor sum = table(ids).sum() + table(ids).sum();  // two passes
  sum.backward({}, /*retain_graph=*/true);
  const auto values = [&] {
    const torch::NoGradGuard no_grad;
    const Tensor rows = table(torch::tensor({3, 4}, torch::kInt64)).flatten();
    return std::vector<float>{rows[0].item<float>(), rows[1].item<float>()};
  };
  EXPECT_EQ(values(), (std::vector<float>{-4, -2}));
  EXPECT_THROW(sum.backward(), InvalidArgument);
  EXPECT_EQ(values(), (std::vector<float>{-4, -2}));
}

TEST(ShardedEmbedding, LookupsOfOneBackwardPassAreOneUpdate) {
  const TableServers servers(2);
  TableClient client(servers.options());
  const auto table_of = [&](const char* name) {
    return ShardedEmbedding(
        over(client, {.name = name, .width = 4, .optimizer = optim::Adagrad({.lr = 0.1}), .scale = 0}));
  };
  ShardedEmbedding twice = table_of("twice");
  ShardedEmbedding once = table_of("once");
  for (int step = 0; step < 5; ++step) {
    const Tensor first = batch_of(2 * step);
    const Tensor second = batch_of(2 * step + 1);
    (loss_of(twice(first), step) + loss_of(twice(second), step + 50)).backward();
    const auto rows = once(torch::stack({first, second}));
    (loss_of(rows[0], step) + loss_of(rows[1], step + 50)).backward();
  }
  const torch::NoGradGuard no_grad;
  const Tensor all = torch::arange(40);
  EXPECT_GT(twice(all).abs().max().item<double>(), 0.05);
  EXPECT_LT((twice(all) - once(all)).abs().max().item<double>(), 1e-6);
}

TEST(ShardedEmbedding, ABackwardPassThatFailsChangesNothing) {
  const TableServers servers(1);
  TableClient client(servers.options());
  ShardedEmbedding table(
      over(client, {.name = "items", .width = 1, .optimizer = optim::SGD({.lr = 1}), .scale = 0}));
  const Tensor ids = torch::tensor({3}, torch::kInt64);
  Tensor leaf = torch::ones({1, 1}, torch::requires_grad());
  Tensor between = leaf * 1;
  between.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("a hook fails"); });
  EXPECT_THROW((between + table(ids)).sum().backward(), std::runtime_error);
  table(ids).sum().backward();
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(table(ids).item<float>(), -1);
}

float row_of(ShardedEmbedding& table, int64_t id) {
  const torch::NoGradGuard no_grad;
  return table(torch::tensor({id}, torch::kInt64)).item<float>();
}

EmbeddingOptions counting() {
  return {.name = "items", .width = 1, .optimizer = optim::SGD({.lr = 1}), .scale = 0};
}

TEST(ShardedEmbedding, RowsOfAGradientThatIsSkippedStayAsTheyAre) {
  const muster::detail::testing::Setup setup = {.workers = 1, .servers = 2, .configure = [](Config& config) {
                                                  config.strategy = "ps-sync";
                                                  config.on_nan = "skip";
                                                }};
  on_workers(setup, [](Job& job) {
    ShardedEmbedding table(job, counting());
    torch::nn::Linear net(2, 1);
    Trainer trainer(job, net, optim::SGD({.lr = 0.1}));
    const Tensor ids = torch::tensor({3}, torch::kInt64);
    for (const float factor : {1.0F, static_cast<float>(kNan), 1.0F})
      trainer.step([&] { return table(ids).sum() + net(torch::ones({1, 2})).sum() * factor; }, 1);
    EXPECT_EQ(trainer.metrics().skipped, 1);
    EXPECT_EQ(row_of(table, 3), -2);
    return 0;
  });
}

TEST(ShardedEmbedding, RowsOfAGradientThatComesTooLateStayAsTheyAre) {
  const muster::detail::testing::Setup setup = {.workers = 2, .servers = 1, .configure = [](Config& config) {
                                                  config.strategy = "ps-sync";
                                                  config.replicas_to_aggregate = 1;
                                                }};
  std::atomic<bool> has_begun = false;
  std::atomic<bool> is_over = false;
  const auto wait = [](const std::atomic<bool>& flag) {
    const auto limit = soon();
    while (!flag && !limit.expired()) std::this_thread::yield();
    EXPECT_TRUE(flag);
  };
  on_workers(setup, [&](Job& job) {
    ShardedEmbedding table(job, counting());
    torch::nn::Linear net(2, 1);
    Trainer trainer(job, net, optim::SGD({.lr = 0.1}));
    const Tensor ids = torch::tensor({job.rank()}, torch::kInt64);
    if (job.rank() == 0) wait(has_begun);
    trainer.step(
        [&] {
          if (job.rank() == 1) {
            has_begun = true;
            wait(is_over);
          }
          return table(ids).sum() + net(torch::ones({1, 2})).sum();
        },
        1);
    if (job.rank() == 0) is_over = true;
    EXPECT_EQ(trainer.metrics().dropped, job.rank());
    trainer.finish_epoch();
    EXPECT_EQ(row_of(table, 0), -1);
    EXPECT_EQ(row_of(table, 1), 0);
    return 0;
  });
}

TEST(ShardedEmbedding, TheBatchesOfAStepAreOneUpdateByTheirMean) {
  const muster::detail::testing::Setup setup = {
      .workers = 1, .servers = 2, .configure = [](Config& config) { config.strategy = "ps-async"; }};
  on_workers(setup, [](Job& job) {
    ShardedEmbedding table(job, counting());
    torch::nn::Linear net(2, 1);
    Trainer trainer(job, net, optim::SGD({.lr = 0.1}), {.accumulate = 2});
    Tensor all = torch::empty({6}, torch::kInt64);  // filled anew for each batch
    for (const int64_t samples : {2, 6}) {
      EXPECT_EQ(row_of(table, 5), 0) << "the step has not ended";
      const Tensor ids = all.fill_(samples == 2 ? 7 : 5).slice(0, 0, samples);
      const auto size = static_cast<double>(samples);
      trainer.step(
          [&] {
            (table(ids).mean() * size / 2).backward();  // a pass of its own counts, too
            return table(ids).mean() * size / 2 + net(torch::ones({1, 2})).sum();
          },
          samples);
    }
    EXPECT_EQ(row_of(table, 7), -(2 * 2) / 8.0F);
    EXPECT_EQ(row_of(table, 5), -(6 * 6) / 8.0F);
    return 0;
  });
}

// Its dense part by the Trainer, which does not see the rows.
TEST(ShardedEmbedding, TrainsBesideATrainer) {
  const TableServers servers(2);
  const auto losses = on_workers({.workers = 2}, [&](Job& job) {
    TableClient client(servers.options(job.rank()));
    ShardedEmbedding table(
        over(client, {.name = "items", .width = 6, .optimizer = optim::Adagrad({.lr = 0.1})}));
    torch::manual_seed(1);
    Net net;
    Trainer trainer(job, net, optim::SGD({.lr = 0.05}));
    const auto loss = [&] {
      const Tensor ids = torch::arange(job.rank(), 40, 2);
      return torch::cross_entropy_loss(net->forward(table(ids)), ids % 3);
    };
    const auto measure = [&] {
      return trainer.evaluate([&](Sums& sums) { sums["loss"] += loss().item<double>(); })["loss"];
    };
    const double before = measure();
    for (int step = 0; step < 60; ++step) trainer.step(loss);
    EXPECT_EQ(table->size().rows, 40u);
    return std::vector<double>{before, measure()};
  });
  EXPECT_NEAR(losses[0][0], 2 * 1.1, 0.3);
  EXPECT_LT(losses[0][1], 0.5);
}

}  // namespace
}  // namespace muster::detail
