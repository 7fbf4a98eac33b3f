#include "muster/sync_batch_norm.h"

#include <vector>

#include <torch/csrc/autograd/custom_function.h>

#include "muster/base/error.h"
#include "muster/communicator.h"
#include "muster/tensor_collectives.h"

namespace muster {

using namespace detail;

namespace {

using torch::Tensor;

// All dimensions but that of the channels.
std::vector<int64_t> other_dimensions(const Tensor& tensor) {
  std::vector<int64_t> dimensions = {0};
  for (int64_t i = 2; i < tensor.dim(); ++i) dimensions.push_back(i);
  return dimensions;
}

// A value for each channel, shaped to go with `like`.
Tensor spread(const Tensor& values, const Tensor& like) {
  std::vector<int64_t> shape(static_cast<size_t>(like.dim()), 1);
  shape[1] = -1;
  return values.to(like.scalar_type()).view(shape);
}

Tensor sum_over_ranks(Communicator& communicator, const std::vector<Tensor>& parts) {
  Tensor sums = torch::cat(parts);
  all_reduce(communicator, sums);
  return sums;
}

struct SyncNormalise : torch::autograd::Function<SyncNormalise> {
  // Gives the output, and the mean, the variance and the number of elements over all workers.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const Tensor& input, const Tensor& weight, const Tensor& bias,
                                                int64_t communicator, double eps) {
    const auto dimensions = other_dimensions(input);
    const int64_t channels = input.size(1);
    const Tensor wide = input.to(torch::kFloat64);
    const double mine = static_cast<double>(input.numel()) / static_cast<double>(channels);
    const Tensor sums = sum_over_ranks(
        *reinterpret_cast<Communicator*>(communicator),
        {wide.sum(dimensions), wide.square().sum(dimensions), torch::full({1}, mine, torch::kFloat64)});
    const Tensor count = sums[2 * channels];
    if (count.item<double>() <= 1)
      throw InvalidArgument(
          "SyncBatchNorm needs more than one value for each channel to train with, and all workers together "
          "have one");
    const Tensor mean = sums.slice(0, 0, channels) / count;
    const Tensor variance = (sums.slice(0, channels, 2 * channels) / count - mean.square()).clamp_min(0);
    const Tensor inverse = (variance + eps).rsqrt();
    Tensor output = (input - spread(mean, input)) * spread(inverse, input);
    context->save_for_backward({input, weight, mean, inverse, count});
    context->saved_data["communicator"] = communicator;
    output = output * spread(weight, input) + spread(bias, input);
    context->mark_non_differentiable({mean, variance, count});
    return {output, mean, variance, count};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor& input = saved[0];
    const Tensor& weight = saved[1];
    const Tensor& count = saved[4];
    const Tensor& gradient = gradients[0];
    const auto dimensions = other_dimensions(input);
    const int64_t channels = input.size(1);
    const Tensor inverse = spread(saved[3], input);
    const Tensor normal = (input - spread(saved[2], input)) * inverse;
    const Tensor sum = gradient.to(torch::kFloat64).sum(dimensions);
    const Tensor product = (gradient * normal).to(torch::kFloat64).sum(dimensions);
    const int64_t address = context->saved_data["communicator"].toInt();
    const Tensor sums = sum_over_ranks(*reinterpret_cast<Communicator*>(address), {sum, product}) / count;
    Tensor back = gradient - spread(sums.slice(0, 0, channels), input) -
                  normal * spread(sums.slice(0, channels, 2 * channels), input);
    back = back * inverse;
    return {back * spread(weight, input), product.to(weight.scalar_type()), sum.to(weight.scalar_type()),
            Tensor(), Tensor()};
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(Job& job, const torch::nn::BatchNormOptions& options)
    : communicator_(job.communicator()), options_(options) {
  const int64_t features = options_.num_features();
  if (options_.affine()) {
    weight = register_parameter("weight", torch::ones({features}));
    bias = register_parameter("bias", torch::zeros({features}));
  }
  if (options_.track_running_stats()) {
    running_mean = register_buffer("running_mean", torch::zeros({features}));
    running_var = register_buffer("running_var", torch::ones({features}));
    num_batches_tracked = register_buffer("num_batches_tracked", torch::zeros({}, torch::kLong));
  }
}

// Without one, the running values are means over all batches so far.
double SyncBatchNormImpl::momentum() {
  num_batches_tracked += 1;
  const auto momentum = options_.momentum();
  return momentum ? *momentum : 1.0 / num_batches_tracked.item<double>();
}

Tensor SyncBatchNormImpl::forward(const Tensor& input) {
  if (input.dim() < 2 || input.size(1) != options_.num_features())
    raise<InvalidArgument>("SyncBatchNorm of {} channels got a tensor of shape [{}]", options_.num_features(),
                           fmt::join(input.sizes(), ", "));
  if (!is_training() && running_mean.defined()) {
    return torch::batch_norm(input, weight, bias, running_mean, running_var, false, 0, options_.eps(), false);
  }
  // A Function takes no undefined tensor.
  const Tensor scale = weight.defined() ? weight : torch::ones({options_.num_features()}, input.options());
  const Tensor shift = bias.defined() ? bias : torch::zeros_like(scale);
  const auto found =
      SyncNormalise::apply(input, scale, shift, reinterpret_cast<int64_t>(&communicator_), options_.eps());
  if (is_training() && running_mean.defined()) {
    const torch::NoGradGuard no_grad;
    const double share = momentum();
    const Tensor unbiased = found[2] * (found[3] / (found[3] - 1));
    running_mean.mul_(1 - share).add_(found[1].to(running_mean.scalar_type()), share);
    running_var.mul_(1 - share).add_(unbiased.to(running_var.scalar_type()), share);
  }
  return found[0];
}

}  // namespace muster
