// Trains two nets against each other: a generator learns to make points like those of a data set, eight
// clouds on a circle, and a discriminator to tell them from the real ones. Each net has a Trainer of its own.
//
//   gan                                      alone
//   muster run --workers 2 -- gan            two workers, which average their gradients
//   muster run --workers 2 --strategy ps-async -- gan     the same with a parameter server

#include <numbers>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <torch/torch.h>

#include "muster/run.h"
#include "muster/trainer.h"

constexpr int64_t kClouds = 8;
constexpr int64_t kNoise = 8;
constexpr int64_t kWidth = 64;
constexpr double kSpread = 0.1;  // of a cloud, whose neighbours are 1.5 away

torch::nn::Sequential make_generator() {
  return torch::nn::Sequential(torch::nn::Linear(kNoise, kWidth), torch::nn::BatchNorm1d(kWidth),
                               torch::nn::ReLU(), torch::nn::Linear(kWidth, kWidth),
                               torch::nn::BatchNorm1d(kWidth), torch::nn::ReLU(),
                               torch::nn::Linear(kWidth, 2));
}

torch::nn::Sequential make_discriminator() {
  const auto leaky = torch::nn::LeakyReLUOptions().negative_slope(0.2);
  return torch::nn::Sequential(torch::nn::Linear(2, kWidth), torch::nn::LeakyReLU(leaky),
                               torch::nn::Linear(kWidth, kWidth), torch::nn::LeakyReLU(leaky),
                               torch::nn::Linear(kWidth, 1));
}

torch::Tensor centres() {
  const auto angle = torch::arange(kClouds) * (2 * std::numbers::pi / kClouds);
  return 2 * torch::stack({torch::cos(angle), torch::sin(angle)}, 1);
}

torch::Tensor real_points(int64_t count) {
  return centres().index_select(0, torch::randint(kClouds, {count})) + kSpread * torch::randn({count, 2});
}

// How far a guess is from the answer: 1 for real, 0 for made.
torch::Tensor loss_of(const torch::Tensor& guess, double answer) {
  return torch::binary_cross_entropy_with_logits(guess, torch::full_like(guess, answer));
}

int main(int argc, char** argv) {
  int steps = 2000;
  int64_t batch = 128;
  double lr = 0.001;
  CLI::App app{"Trains a generator and a discriminator against each other"};
  app.add_option("--steps", steps, "of each net, by each worker")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", batch, "points a step, of each worker")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--lr", lr, "learning rate")->check(CLI::PositiveNumber)->capture_default_str();

  return muster::run(app, argc, argv, [&](muster::Job& job) {
    torch::manual_seed(1 + job.rank());  // each has points of its own; the nets start as the chief's
    auto generator = make_generator();
    auto discriminator = make_discriminator();
    const muster::optim::Adam optimizer({.lr = lr, .betas = {0.5, 0.999}});
    const muster::TrainerOptions options = {.epochs = 1,
                                            .samples_per_epoch = int64_t{steps} * batch * job.size(),
                                            .schedule = muster::cosine_decay(muster::epochs(1))};
    muster::Trainer discriminator_trainer(job, discriminator, optimizer, options);
    muster::Trainer generator_trainer(job, generator, optimizer, options);
    generator_trainer.show_progress([&] {
      return fmt::format("discriminator {:.3f}  generator {:.3f}", discriminator_trainer.metrics().loss,
                         generator_trainer.metrics().loss);
    });
    for (int step = 0; step < steps; ++step) {
      torch::Tensor made;
      discriminator_trainer.step(
          [&] {
            made = generator->forward(torch::randn({batch, kNoise}));
            return loss_of(discriminator->forward(real_points(batch)), 1) +
                   loss_of(discriminator->forward(made.detach()), 0);
          },
          batch);
      // Its backward pass runs through the discriminator, whose Trainer takes no notice.
      generator_trainer.step([&] { return loss_of(discriminator->forward(made), 1); }, batch);
    }
    discriminator_trainer.finish_epoch();
    generator_trainer.finish_epoch();

    const auto sums = generator_trainer.evaluate([&](muster::Sums& mine) {
      const auto [distance, cloud] =
          torch::cdist(generator->forward(torch::randn({1000, kNoise})), centres()).min(1);
      const auto hit = cloud.masked_select(distance < 4 * kSpread);
      mine["points"] += 1000;
      mine["hits"] += static_cast<double>(hit.numel());
      for (int64_t i = 0; i < kClouds; ++i)
        mine[fmt::format("cloud {}", i)] += hit.eq(i).sum().item<double>();
    });
    int64_t found = 0;
    for (int64_t i = 0; i < kClouds; ++i) found += sums.at(fmt::format("cloud {}", i)) > 0 ? 1 : 0;
    if (job.is_chief())
      fmt::print("{:.0f} % of the generator's points are in a cloud, in {} of {} clouds\n",
                 100 * sums.at("hits") / sums.at("points"), found, kClouds);
  });
}
