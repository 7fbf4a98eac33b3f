// Learns who clicks on what, with embedding tables that no worker holds: the rows of users and items are on
// the parameter servers, and a worker has only those of its batch.
//
//   muster run --ps 2 --workers 2 --strategy ps-async -- recommend
//
// The clicks are made by this program. Every user and every item has hidden factors, and a user clicks on an
// item with probability sigmoid(2 * their product). A few users and items are in most samples, as in real
// life, and most of the millions of others are never seen: their rows are never made. The model has a tower
// for each side, a row of a table and a linear layer on it, and the product of the two is its guess. The
// layers are trained by the Trainer, the rows by the servers.

#include <algorithm>
#include <cmath>
#include <random>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <torch/torch.h>

#include "muster/embedding.h"
#include "muster/run.h"
#include "muster/trainer.h"

struct Batch {
  torch::Tensor users;
  torch::Tensor items;
  torch::Tensor clicks;       // 0 or 1
  torch::Tensor probability;  // of a click, which the model never sees
};

class Clicks {
 public:
  Clicks(int64_t users, int64_t items) : users_(users), items_(items) {}

  Batch batch(uint64_t seed, int64_t size) const {
    Batch batch = {torch::empty({size}, torch::kInt64), torch::empty({size}, torch::kInt64),
                   torch::empty({size}), torch::empty({size})};
    std::mt19937_64 generator(seed);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t user = draw(generator, users_);
      const int64_t item = draw(generator, items_);
      double product = 0;
      for (uint64_t k = 0; k < kFactors; ++k) product += factor(0, user, k) * factor(1, item, k);
      const double probability = 1 / (1 + std::exp(-2 * product));
      batch.users.data_ptr<int64_t>()[i] = user;
      batch.items.data_ptr<int64_t>()[i] = item;
      batch.clicks.data_ptr<float>()[i] = std::bernoulli_distribution(probability)(generator) ? 1 : 0;
      batch.probability.data_ptr<float>()[i] = static_cast<float>(probability);
    }
    return batch;
  }

 private:
  static constexpr uint64_t kFactors = 4;

  // The n-th most popular comes up 1/n as often as the first.
  static int64_t draw(std::mt19937_64& generator, int64_t count) {
    const double share = std::uniform_real_distribution<double>()(generator);
    return std::min(static_cast<int64_t>(std::pow(static_cast<double>(count) + 1, share)) - 1, count - 1);
  }

  // Uniform with variance 1; the same for the same id, without being kept anywhere.
  static double factor(uint64_t side, int64_t id, uint64_t k) {
    uint64_t bits = ((static_cast<uint64_t>(id) * 2 + side) * kFactors + k + 1) * 0x9e3779b97f4a7c15;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;  // splitmix64
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    bits ^= bits >> 31;
    return std::sqrt(3.0) * (std::ldexp(static_cast<double>(bits), -63) - 1);
  }

  const int64_t users_;
  const int64_t items_;
};

struct TowersImpl : torch::nn::Module {
  TowersImpl(int64_t width, muster::ShardedEmbedding user_table, muster::ShardedEmbedding item_table)
      : user_rows(std::move(user_table)),
        item_rows(std::move(item_table)),
        user(width, width),
        item(width, width) {
    register_module("user_rows", user_rows);
    register_module("item_rows", item_rows);
    register_module("user", user);
    register_module("item", item);
  }

  torch::Tensor forward(const Batch& batch) {
    return (user(user_rows(batch.users)) * item(item_rows(batch.items))).sum(1);
  }

  muster::ShardedEmbedding user_rows;
  muster::ShardedEmbedding item_rows;
  torch::nn::Linear user;
  torch::nn::Linear item;
};
TORCH_MODULE(Towers);

int main(int argc, char** argv) {
  int64_t items = 10'000'000;
  int64_t users = 1'000'000;
  int64_t width = 16;
  int64_t steps = 3000;
  int64_t batch = 512;
  CLI::App app{"Learns clicks of users on items, with embedding tables on the servers"};
  app.add_option("--items", items, "how many there are")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--users", users, "how many there are")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--width", width, "floats of a row")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--steps", steps, "batches of each worker")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", batch, "samples of a batch")->check(CLI::PositiveNumber)->capture_default_str();

  return muster::run(app, argc, argv, [&](muster::Job& job) {
    const auto table = [&](const char* name) {
      return muster::ShardedEmbedding(
          job,
          {.name = name, .width = width, .optimizer = muster::optim::Adagrad({.lr = 0.1}), .scale = 0.3});
    };
    const auto user_rows = table("users");
    const auto item_rows = table("items");
    const Clicks clicks(users, items);
    torch::manual_seed(1);
    Towers towers(width, user_rows, item_rows);
    muster::Trainer trainer(job, towers, muster::optim::Adam({.lr = 2e-3}),
                            {.epochs = 1, .samples_per_epoch = steps * batch * job.size()});
    trainer.show_progress();
    for (int64_t step = 0; step < steps; ++step) {
      const auto seed = static_cast<uint64_t>(step * job.size() + job.rank() + 1);
      const Batch now = clicks.batch(seed, batch);
      trainer.step([&] { return torch::binary_cross_entropy_with_logits(towers(now), now.clicks); }, batch);
    }
    trainer.finish_epoch();

    // On samples that nobody has trained on.
    const auto sums = trainer.evaluate([&](muster::Sums& mine) {
      const auto seed = static_cast<uint64_t>(-1 - job.rank());
      const Batch now = clicks.batch(seed, 20'000);
      mine["count"] += 1;
      mine["loss"] += torch::binary_cross_entropy_with_logits(towers(now), now.clicks).item<double>();
      mine["least"] += torch::binary_cross_entropy(now.probability, now.clicks).item<double>();
    });
    if (job.is_chief()) {
      fmt::print("loss {:.4f}; {:.4f} with the hidden factors themselves, {:.4f} by tossing a coin\n",
                 sums.at("loss") / sums.at("count"), sums.at("least") / sums.at("count"), std::log(2.0));
      for (auto [rows, count] : {std::pair(user_rows, users), std::pair(item_rows, items)}) {
        const muster::EmbeddingSize size = rows->size();
        fmt::print("{}: {} of {} rows have been trained, {:.1f} MiB on the servers\n", rows->options().name,
                   size.rows, count, static_cast<double>(size.bytes) / (1 << 20));
      }
    }
  });
}
