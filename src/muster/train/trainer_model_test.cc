// Models that the Trainer has to cope with: unused, shared, frozen, added parameters, other types and
// layouts.

#include <thread>

#include "muster/base/error.h"
#include "muster/train/trainer_test.h"
#include "muster/trainer.h"

namespace muster::detail {
namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using torch::nn::Module;

class TrainerModel : public ::testing::TestWithParam<Setup> {
 protected:
  /// Trains a new Model on each worker, which computes loss(model, worker, step); expects what torch makes of
  /// the mean of these losses. prepare(model, step) comes before each step.
  template <typename Model>
  void check(
      int steps, const std::function<Tensor(Model&, int worker, int step)>& loss,
      const std::function<void(Model&, int step)>& prepare = [](Model&, int) {}) const {
    const int workers = GetParam().workers;
    Model alone;
    fill(*alone);
    const auto expected = plain_sgd(*alone, steps, [&](int step) {
      prepare(alone, step);
      Tensor sum = torch::zeros({});
      for (int worker = 0; worker < workers; ++worker) sum = sum + loss(alone, worker, step);
      return sum / workers;
    });
    const auto found = on_workers(GetParam(), [&](Job& job) {
      Model model;
      fill(*model, job.is_chief() ? 7 : 77);
      Trainer trainer(job, model, sgd_rule());
      trainer.before_step([&] { prepare(model, static_cast<int>(trainer.steps())); });
      for (int step = 0; step < steps; ++step) trainer.step([&] { return loss(model, job.rank(), step); });
      return values_of(*model);
    });
    expect_all(found, expected);
  }
};
INSTANTIATE_TEST_SUITE_P(Setups, TrainerModel, ::testing::Values(Setup{1}, Setup{3}, Setup{2, false}),
                         setup_name);

Tensor input(int worker, int step, at::IntArrayRef shape) {
  return random(shape, static_cast<uint64_t>(100 + worker * 50 + step));
}

TEST_P(TrainerModel, StartsFromTheChiefsParametersAndBuffersAlsoFrozenOnes) {
  const auto found = on_workers(GetParam(), [](Job& job) {
    torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 2));
    model[2]->as<torch::nn::Linear>()->weight.set_requires_grad(false);
    {
      const torch::NoGradGuard no_grad;
      for (auto& tensor : model->parameters()) tensor.fill_(5 + job.rank());
      for (auto& tensor : model->buffers()) tensor.fill_(5 + job.rank());
    }
    const Trainer trainer(job, model, sgd_rule());
    Tensors all = values_of(*model);
    for (const auto& buffer : model->buffers()) all.push_back(buffer.clone());
    return all;
  });
  for (const auto& tensors : found) {
    EXPECT_EQ(tensors.size(), 9U);
    for (const auto& tensor : tensors) EXPECT_TRUE(tensor.eq(5).all().item<bool>());
  }
}

TEST_P(TrainerModel, AParameterWithoutGradientIsAveragedWithZerosOrLeftAlone) {
  check<Net>(7, [&](Net& net, int worker, int step) {
    const bool used = step % 3 == 0 ? worker == GetParam().workers - 1 : step % 3 == 1;
    const auto hidden = used ? net->fc1(input(worker, step, {4, 6})) : input(worker, step, {4, 8});
    return net->fc2(torch::tanh(hidden)).square().mean();
  });
}

struct SquareImpl : torch::nn::Module {
  SquareImpl() {
    register_module("first", fc);
    register_module("second", fc);  // the same one: tied weights
    register_module("last", last);
  }
  torch::nn::Linear fc{5, 5};
  torch::nn::Linear last{5, 5};
};
TORCH_MODULE(Square);

TEST_P(TrainerModel, AParameterMayBeUsedTwiceAndHaveTwoNames) {
  check<Square>(6, [](Square& net, int worker, int step) {
    return net->last(torch::tanh(net->fc(torch::tanh(net->fc(input(worker, step, {4, 5})))))).square().mean();
  });
}

struct FrozenImpl : NetImpl {
  FrozenImpl() {
    for (auto& parameter : fc1->parameters()) parameter.set_requires_grad(false);
  }
};
TORCH_MODULE(Frozen);

TEST_P(TrainerModel, FrozenParametersStayAsTheyAre) {
  check<Frozen>(5, [](Frozen& net, int worker, int step) {
    EXPECT_FALSE(net->fc1->weight.grad().defined());
    return net->forward(input(worker, step, {4, 6})).square().mean();
  });
}

TEST_P(TrainerModel, ParametersMayBeUnfrozenAndFrozenLater) {
  check<Frozen>(
      9,
      [](Frozen& net, int worker, int step) {
        return net->forward(input(worker, step, {4, 6})).square().mean();
      },
      [](Frozen& net, int step) {
        net->fc1->weight.set_requires_grad(step >= 3);
        net->fc2->bias.set_requires_grad(step < 3 || step >= 6);
      });
}

TEST_P(TrainerModel, SparseGradientsAreThoseOfADenseEmbedding) {
  struct WordsImpl : torch::nn::Module {
    explicit WordsImpl(bool sparse = true)
        : words(torch::nn::EmbeddingOptions(2000, 3).sparse(sparse)), fc(3, 2) {
      register_module("words", words);
      register_module("fc", fc);
    }
    Tensor loss(int worker, int step) {
      const auto rows = (input(worker, step, {7}) * 300).abs().to(torch::kLong).clamp_max(1999);
      return fc(words(rows)).square().mean();
    }
    torch::nn::Embedding words;
    torch::nn::Linear fc;
  };
  WordsImpl dense(false);
  fill(dense);
  const int workers = GetParam().workers;
  const auto expected = plain_sgd(dense, 3, [&](int step) {
    Tensor sum = torch::zeros({});
    for (int worker = 0; worker < workers; ++worker)
      sum = sum + dense.loss(worker, 2 * step) + dense.loss(worker, 2 * step + 1);
    return sum / (2 * workers);
  });
  expect_all(on_workers(GetParam(),
                        [](Job& job) {
                          WordsImpl words;
                          fill(words);
                          Trainer trainer(job, words, sgd_rule(), {.accumulate = 2});
                          for (int step = 0; step < 6; ++step)
                            trainer.step([&] { return words.loss(job.rank(), step); });
                          return values_of(words);
                        }),
             expected);
}

struct ChannelsLastImpl : torch::nn::Module {
  ChannelsLastImpl() {
    register_module("conv", conv);
    conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(3, 4, 3)};
};
TORCH_MODULE(ChannelsLast);

TEST_P(TrainerModel, ChannelsLastParametersKeepTheirLayout) {
  check<ChannelsLast>(4, [](ChannelsLast& net, int worker, int step) {
    EXPECT_TRUE(net->conv->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
    return net->conv(input(worker, step, {2, 3, 6, 6})).square().mean();
  });
}

struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    wide = register_parameter("wide", random({4}, 1).to(torch::kFloat64));
    plain = register_parameter("plain", random({4}, 2));
    narrow = register_parameter("narrow", random({4}, 3).to(torch::kBFloat16));
  }
  Tensor loss(const Tensor& x, const Tensor& brain) const {
    const auto sum = (x.to(torch::kFloat64) * wide).sum(1).to(torch::kFloat32) + (x * plain).sum(1) +
                     (x.to(torch::kBFloat16) * brain).sum(1).to(torch::kFloat32);
    return (sum - 1).square().mean();
  }
  Tensor wide;
  Tensor plain;
  Tensor narrow;
};

TEST(TrainerTypes, ParametersOfSeveralTypesAreTrainedEachInItsOwn) {
  const auto servers = [](Config& config) { config.strategy = "ps-sync"; };
  const std::vector<muster::detail::testing::Setup> setups = {
      {.workers = 2},
      {.workers = 2, .shared_memory = false},
      {.workers = 2, .servers = 1, .configure = servers},
      {.workers = 2, .shared_memory = false, .servers = 2, .configure = servers},
  };
  for (const auto& setup : setups) {
    MixedImpl alone;
    // A 16-bit parameter is trained as a float32 one that is rounded where it is used.
    Tensor master = alone.narrow.detach().to(torch::kFloat32).requires_grad_();
    torch::optim::SGD optimizer({alone.wide, alone.plain, master},
                                torch::optim::SGDOptions(0.02).momentum(0.9));
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      for (int worker = 0; worker < 2; ++worker)
        (alone.loss(input(worker, step, {4, 4}), master.to(torch::kBFloat16)) / 2).backward();
      optimizer.step();
    }
    const auto found = on_workers(setup, [](Job& job) {
      MixedImpl mixed;
      Trainer trainer(job, mixed, optim::SGD({.lr = 0.02, .momentum = 0.9}));
      for (int step = 0; step < 20; ++step)
        trainer.step([&] { return mixed.loss(input(job.rank(), step, {4, 4}), mixed.narrow); });
      EXPECT_EQ(mixed.narrow.scalar_type(), torch::kBFloat16);
      EXPECT_EQ(mixed.wide.scalar_type(), torch::kFloat64);
      return values_of(mixed);
    });
    for (const auto& values : found) {
      expect_near({values[0], values[1]}, {alone.wide.detach(), alone.plain.detach()});
      expect_near({values[2]}, {master.detach().to(torch::kBFloat16)}, 0.008);  // one of its steps at 1
    }
  }
}

struct GrowingImpl : NetImpl {
  void grow() {
    extra = register_module("extra", torch::nn::Linear(3, 3));
    fill(*extra, 55);
  }
  Tensor forward(const Tensor& x) { return extra ? extra(NetImpl::forward(x)) : NetImpl::forward(x); }
  torch::nn::Linear extra = nullptr;
};

TEST_P(TrainerModel, ALayerMayBeAddedOnAllWorkersAndTheOthersKeepTheirState) {
  const int workers = GetParam().workers;
  GrowingImpl alone;
  alone.grow();
  fill(*alone.fc1, 7);
  fill(*alone.fc2, 9);
  const auto expected = plain<torch::optim::Adam>(alone, torch::optim::AdamOptions(0.05), 7, [&](int step) {
    Tensor sum = torch::zeros({});
    const int active = step >= 2 ? 1 : workers;  // the others have finished the epoch
    for (int worker = 0; worker < active; ++worker) {
      const auto x = input(worker, step, {4, 6});
      sum = sum + (step >= 3 ? alone.forward(x) : alone.NetImpl::forward(x)).square().mean();
    }
    return sum / active;
  });
  expect_all(on_workers(GetParam(),
                        [](Job& job) {
                          GrowingImpl net;
                          fill(net, job.is_chief() ? 7 : 77);
                          Trainer trainer(job, net, optim::Adam({.lr = 0.05}));
                          trainer.after_step([&] {
                            if (trainer.steps() != 3) return;
                            net.grow();
                            if (!job.is_chief()) fill(*net.extra, 99);
                          });
                          for (int step = 0; step < (job.is_chief() ? 7 : 2); ++step)
                            trainer.step([&] {
                              return net.forward(input(job.rank(), step, {4, 6})).square().mean();
                            });
                          trainer.finish_epoch();
                          return values_of(net);
                        }),
             expected);
}

TEST_P(TrainerModel, ALayerMayBeAddedBeforeTheFirstStep) {
  GrowingImpl alone;
  alone.grow();
  fill(alone, 7);
  const int workers = GetParam().workers;
  const auto expected = plain_sgd(alone, 2, [&](int step) {
    Tensor sum = torch::zeros({});
    for (int worker = 0; worker < workers; ++worker)
      sum = sum + alone.forward(input(worker, step, {4, 6})).square().mean();
    return sum / workers;
  });
  const auto found = on_workers(GetParam(), [](Job& job) {
    GrowingImpl net;
    Trainer trainer(job, net, sgd_rule());
    net.grow();
    fill(net, job.is_chief() ? 7 : 99);
    for (int step = 0; step < 2; ++step)
      trainer.step([&] { return net.forward(input(job.rank(), step, {4, 6})).square().mean(); });
    return values_of(net);
  });
  expect_all(found, expected);
}

TEST(TrainerChange, OfOneWorkersModelOnlyIsAnErrorOnAll) {
  for (const bool shared : {true, false}) {
    const auto errors = errors_of({3, shared}, [](Job& job) {
      GrowingImpl net;
      Trainer trainer(job, net, sgd_rule());
      for (int step = 0; step < 5; ++step) {
        if (step == 3 && job.rank() == 2) net.grow();
        trainer.step([&] { return net.forward(input(job.rank(), step, {4, 6})).square().mean(); });
      }
    });
    EXPECT_THAT(errors, Each(HasSubstr("changed before step 4 on 1 of 3 workers")));
  }
}

struct Slow : torch::autograd::Function<Slow> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, int64_t milliseconds) {
    context->saved_data["milliseconds"] = milliseconds;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    std::this_thread::sleep_for(std::chrono::milliseconds(context->saved_data["milliseconds"].toInt()));
    return {gradients[0], Tensor()};
  }
};

// The weight of `last` has its gradient first; the backward pass of the layer before reads it once more.
TEST_P(TrainerModel, AParameterThatIsReadLaterInBackwardDoesNotChangeBefore) {
  check<Square>(4, [](Square& net, int worker, int step) {
    const auto hidden = net->fc(input(worker, step, {4, 5})).mm(net->last->weight.detach());
    return torch::tanh(Slow::apply(hidden, worker == 1 ? 60 : 0).mm(net->last->weight)).square().mean();
  });
}

struct Difference {
  std::string name;
  std::string chief;
  std::string other;
  std::function<void(Module&)> make;
};

TEST(TrainerModels, ThatDifferStopAllWorkersAndNameTheFirstDifference) {
  const std::vector<Difference> differences = {
      {"name", "parameter b Float [2]", "parameter c Float [2]",
       [](Module& it) { it.register_parameter("c", torch::zeros({2})); }},
      {"shape", "parameter b Float [2]", "parameter b Float [2, 1]",
       [](Module& it) {
         it.register_parameter("b", torch::zeros({2, 1}));
       }},
      {"type", "parameter b Float [2]", "parameter b Double [2]",
       [](Module& it) { it.register_parameter("b", torch::zeros({2}, torch::kFloat64)); }},
      {"frozen", "parameter b Float [2]", "frozen parameter b Float [2]",
       [](Module& it) { it.register_parameter("b", torch::zeros({2}), false); }},
      {"buffer", "no more", "buffer d Long [1]",
       [](Module& it) {
         it.register_parameter("b", torch::zeros({2}));
         it.register_buffer("d", torch::zeros({1}, torch::kLong));
       }},
      {"missing", "parameter b Float [2]", "no more", [](Module&) {}}};
  for (const auto& difference : differences) {
    const auto errors = errors_of({3}, [&](Job& job) {
      torch::nn::Module module;
      module.register_parameter("a", torch::zeros({3}));
      if (job.rank() == 2) {
        difference.make(module);
      } else {
        module.register_parameter("b", torch::zeros({2}));
      }
      EXPECT_THROW(const Trainer refused(job, module, sgd_rule()), InvalidArgument);
      const Trainer again(job, module, sgd_rule());
    });
    EXPECT_THAT(errors,
                Each(AllOf(HasSubstr("worker/2 (host "), HasSubstr("the chief has " + difference.chief),
                           HasSubstr("it has " + difference.other))))
        << difference.name;
  }
}

TEST(TrainerModels, ThatDifferInTheOrderOfTheirMemoryStopAllWorkers) {
  const auto errors = errors_of({2}, [](Job& job) {
    ChannelsLast net;
    if (job.is_chief()) net->conv->weight.set_data(net->conv->weight.detach().contiguous());
    const Trainer trainer(job, net, sgd_rule());
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("conv.weight"), HasSubstr("strides [27, 1, 9, 3]"))));
}

TEST_P(TrainerModel, WithNothingToTrainItTakesStepsThatChangeNothing) {
  on_workers(GetParam(), [](Job& job) {
    torch::nn::Linear frozen(2, 2);
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    Trainer trainer(job, frozen, sgd_rule());
    auto x = torch::ones({1}).requires_grad_();
    for (int step = 0; step < 3; ++step) trainer.step([&] { return (x * 2).sum(); });
    EXPECT_DOUBLE_EQ(trainer.metrics().loss, 2);
    return trainer.steps();
  });
}

}  // namespace
}  // namespace muster::detail
