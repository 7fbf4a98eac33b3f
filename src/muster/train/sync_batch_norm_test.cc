#include "muster/sync_batch_norm.h"

#include "muster/base/error.h"
#include "muster/train/trainer_test.h"

namespace muster::detail {
namespace {

using namespace testing;
using torch::nn::BatchNormOptions;

// Rows of each worker's batch.
using Sizes = std::vector<int64_t>;

Tensor input(int step) {
  return random({9, 4, 3, 2}, static_cast<uint64_t>(step)) * 2 + 5;
}

// What a loss might give back.
Tensor upstream(int step) {
  return random({9, 4, 3, 2}, static_cast<uint64_t>(100 + step));
}

// A module's outputs, input gradients and parameter gradients in three steps, and its buffers after them.
struct Trace {
  Tensors outputs;
  Tensors inputs;
  Tensors parameters;
  Tensors buffers;
};

template <typename Norm>
Trace trace(Norm& norm, int64_t begin, int64_t end) {
  fill(*norm);
  Trace trace;
  for (int step = 0; step < 3; ++step) {
    for (auto& parameter : norm->parameters()) parameter.mutable_grad().reset();
    const auto x = input(step).slice(0, begin, end).clone().requires_grad_();
    const auto y = norm->forward(x);
    (y * upstream(step).slice(0, begin, end)).sum().backward();
    trace.outputs.push_back(y.detach());
    trace.inputs.push_back(x.grad());
    for (const auto& parameter : norm->parameters()) trace.parameters.push_back(parameter.grad());
  }
  for (const auto& buffer : norm->buffers()) trace.buffers.push_back(buffer.clone());
  return trace;
}

void check(const Sizes& sizes, const BatchNormOptions& options) {
  torch::nn::BatchNorm2d alone{options};
  const Trace expected = trace(alone, 0, 9);
  const auto found = on_workers({static_cast<int>(sizes.size())}, [&](Job& job) {
    SyncBatchNorm norm{job, options};
    int64_t begin = 0;
    for (int i = 0; i < job.rank(); ++i) begin += sizes[static_cast<size_t>(i)];
    return trace(norm, begin, begin + sizes[static_cast<size_t>(job.rank())]);
  });
  if (::testing::Test::HasFailure()) return;
  for (size_t step = 0; step < 3; ++step) {
    Tensors outputs;
    Tensors inputs;
    for (const auto& worker : found) {
      outputs.push_back(worker.outputs[step]);
      inputs.push_back(worker.inputs[step]);
    }
    expect_near({torch::cat(outputs), torch::cat(inputs)}, {expected.outputs[step], expected.inputs[step]},
                1e-5);
  }
  for (size_t i = 0; i < expected.parameters.size(); ++i) {
    Tensor sum = torch::zeros_like(expected.parameters[i]);
    for (const auto& worker : found) sum += worker.parameters[i];
    expect_near({sum}, {expected.parameters[i]}, 1e-4);
  }
  for (const auto& worker : found) expect_near(worker.buffers, expected.buffers, 1e-5);
}

TEST(SyncBatchNorm, IsTorchsOverTheWholeBatch) {
  check({9}, BatchNormOptions(4));
  check({3, 3, 3}, BatchNormOptions(4));
}

TEST(SyncBatchNorm, BatchesMayHaveDifferentSizes) {
  check({7, 2}, BatchNormOptions(4));
  check({1, 3, 5}, BatchNormOptions(4));
  check({9, 0}, BatchNormOptions(4));
}

TEST(SyncBatchNorm, WithoutMomentumTheRunningValuesAreMeans) {
  check({4, 5}, BatchNormOptions(4).momentum(c10::nullopt));
}

TEST(SyncBatchNorm, HasTorchsOptions) {
  check({4, 5}, BatchNormOptions(4).affine(false));
  check({4, 5}, BatchNormOptions(4).track_running_stats(false));
  check({4, 5}, BatchNormOptions(4).eps(0.1).momentum(0.5));
}

TEST(SyncBatchNorm, InEvaluationEachWorkerIsAloneWithTheRunningValues) {
  torch::nn::BatchNorm2d alone(4);
  trace(alone, 0, 9);
  alone->eval();
  const auto expected = alone(input(7));
  on_workers({2}, [&](Job& job) {
    SyncBatchNorm norm{job, BatchNormOptions(4)};
    trace(norm, job.is_chief() ? 0 : 5, job.is_chief() ? 5 : 9);
    norm->eval();
    const auto before = norm->running_mean.clone();
    if (job.is_chief()) expect_near({norm(input(7))}, {expected}, 1e-5);
    expect_near({norm->running_mean}, {before}, 0);
    return 0;
  });
}

TEST(SyncBatchNorm, TakesAnyNumberOfDimensions) {
  Job job(Config{});
  SyncBatchNorm norm{job, BatchNormOptions(4)};
  torch::nn::BatchNorm1d flat(4);
  torch::nn::BatchNorm3d deep(4);
  expect_near({norm(random({5, 4}, 1))}, {flat(random({5, 4}, 1))}, 1e-5);
  expect_near({norm(random({2, 4, 2, 3, 2}, 1))}, {deep(random({2, 4, 2, 3, 2}, 1))}, 1e-5);
}

TEST(SyncBatchNorm, OtherChannelsAreAnError) {
  Job job(Config{});
  SyncBatchNorm norm{job, BatchNormOptions(4)};
  try {
    norm(torch::ones({2, 3, 5}));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "SyncBatchNorm of 4 channels got a tensor of shape [2, 3, 5]");
  }
  EXPECT_THROW(norm(torch::ones({4})), InvalidArgument);
}

struct NormedImpl : torch::nn::Module {
  explicit NormedImpl(torch::nn::AnyModule normalise) : norm(std::move(normalise)) {
    register_module("conv", conv);
    register_module("norm", norm.ptr());
  }
  Tensor loss(const Tensor& x) { return (norm.forward(conv(x)) - 0.3).pow(3).mean(); }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(4, 4, 2)};
  torch::nn::AnyModule norm;
};

TEST(SyncBatchNorm, TrainsLikeOneProcessWithTheWholeBatch) {
  NormedImpl alone{torch::nn::AnyModule(torch::nn::BatchNorm2d(4))};
  fill(alone);
  const auto expected = plain_sgd(alone, 6, [&](int step) { return alone.loss(input(step)); });
  for (const bool shared : {true, false}) {
    const auto found = on_workers({3, shared}, [](Job& job) {
      NormedImpl net{torch::nn::AnyModule(SyncBatchNorm(job, BatchNormOptions(4)))};
      fill(net);
      Trainer trainer(job, net, sgd_rule());
      for (int step = 0; step < 6; ++step)
        trainer.step([&] { return net.loss(input(step).chunk(3)[static_cast<size_t>(job.rank())]); }, 3);
      return values_of(net);
    });
    expect_all(found, expected, 1e-4);
  }
}

TEST(SyncBatchNorm, OneValueForEachChannelIsAnErrorAsOfTorchs) {
  Job job(Config{});
  SyncBatchNorm norm(job, BatchNormOptions(4));
  EXPECT_THROW(norm(random({1, 4}, 1)), InvalidArgument);
  EXPECT_TRUE(norm->running_var.isfinite().all().item<bool>());
}

}  // namespace
}  // namespace muster::detail
