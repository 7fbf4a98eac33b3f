// Operators that libtorch 1.13 can't run on tensors without data, and those that rest on them. Each function
// takes the arguments of the operator's schema, and gives results without data.

#include <functional>
#include <string>
#include <unordered_map>

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/result_type.h>
#include <c10/util/Exception.h>

#include "muster/graph/shape_inference.h"

namespace muster::detail {

namespace {

using Values = std::vector<c10::IValue>;

at::Tensor tensor_like(const at::Tensor& like, at::IntArrayRef sizes) {
  return at::empty(sizes, like.options().device(at::kMeta));
}

// "one for all dimensions, or one for each"
int64_t at_dimension(const std::vector<int64_t>& list, int64_t dimension) {
  return list.size() == 1 ? list.front() : list.at(static_cast<size_t>(dimension));
}

struct Convolution {
  at::Tensor input;
  at::Tensor weight;
  std::vector<int64_t> stride;
  std::vector<int64_t> padding;
  std::vector<int64_t> dilation;
  bool transposed = false;
  std::vector<int64_t> output_padding = {0};
  int64_t groups = 1;
};

at::Tensor convolve(const Convolution& c) {
  const int64_t spatial = c.weight.dim() - 2;
  TORCH_CHECK(spatial >= 1 && (c.input.dim() == spatial + 2 || c.input.dim() == spatial + 1), "Expected ",
              spatial + 1, "D (unbatched) or ", spatial + 2, "D (batched) input, but got input of size ",
              c.input.sizes(), " for a weight of size ", c.weight.sizes());
  const int64_t channel = c.input.dim() - spatial - 1;
  const int64_t expected = c.transposed ? c.weight.size(0) : c.weight.size(1) * c.groups;
  TORCH_CHECK(c.input.size(channel) == expected, "Given groups=", c.groups, ", weight of size ",
              c.weight.sizes(), ", expected input", c.input.sizes(), " to have ", expected,
              " channels, but got ", c.input.size(channel), " channels instead");
  std::vector<int64_t> sizes = c.input.sizes().vec();
  sizes[static_cast<size_t>(channel)] = c.transposed ? c.weight.size(1) * c.groups : c.weight.size(0);
  for (int64_t d = 0; d < spatial; ++d) {
    auto& size = sizes[static_cast<size_t>(channel + 1 + d)];
    const int64_t kernel = at_dimension(c.dilation, d) * (c.weight.size(d + 2) - 1) + 1;
    const int64_t stride = at_dimension(c.stride, d);
    if (c.transposed) {
      size =
          (size - 1) * stride - 2 * at_dimension(c.padding, d) + kernel + at_dimension(c.output_padding, d);
    } else {
      const int64_t padded = size + 2 * at_dimension(c.padding, d);
      TORCH_CHECK(padded >= kernel && stride > 0, "Calculated padded input size ", padded,
                  " is smaller than the kernel of size ", kernel);
      size = (padded - kernel) / stride + 1;
    }
    TORCH_CHECK(size > 0, "the result of a convolution would have size ", size, " in dimension ", d);
  }
  return tensor_like(c.input, sizes);
}

// conv1d, conv2d, conv3d: input, weight, bias, stride, padding, dilation, groups
Values conv(const Values& a) {
  Convolution c{.input = a[0].toTensor(),
                .weight = a[1].toTensor(),
                .stride = a[3].toIntVector(),
                .dilation = a[5].toIntVector(),
                .groups = a[6].toInt()};
  if (a[4].isString()) {
    if (a[4].toStringRef() == "same")
      return {tensor_like(c.input, [&] {
        std::vector<int64_t> sizes = c.input.sizes().vec();
        sizes[sizes.size() - static_cast<size_t>(c.weight.dim() - 1)] = c.weight.size(0);
        return sizes;
      }())};
    c.padding = {0};
  } else {
    c.padding = a[4].toIntVector();
  }
  return {convolve(c)};
}

// conv_transpose1d, 2d and 3d: input, weight, bias, stride, padding, output_padding, groups, dilation
Values conv_transpose(const Values& a) {
  return {convolve({.input = a[0].toTensor(),
                    .weight = a[1].toTensor(),
                    .stride = a[3].toIntVector(),
                    .padding = a[4].toIntVector(),
                    .dilation = a[7].toIntVector(),
                    .transposed = true,
                    .output_padding = a[5].toIntVector(),
                    .groups = a[6].toInt()})};
}

// convolution, _convolution: input, weight, bias, stride, padding, dilation, transposed, output_padding,
// groups
Values convolution(const Values& a) {
  return {convolve({.input = a[0].toTensor(),
                    .weight = a[1].toTensor(),
                    .stride = a[3].toIntVector(),
                    .padding = a[4].toIntVector(),
                    .dilation = a[5].toIntVector(),
                    .transposed = a[6].toBool(),
                    .output_padding = a[7].toIntVector(),
                    .groups = a[8].toInt()})};
}

Values as_first(const Values& a) {
  return {tensor_like(a[0].toTensor(), a[0].toTensor().sizes())};
}

Values truths(const Values& a) {
  return {tensor_like(a[0].toTensor(), a[0].toTensor().sizes()).to(at::kBool)};
}

Values scalar_as_first(const Values& a) {
  return {tensor_like(a[0].toTensor(), {})};
}

// input, target, ..., reduction: none, mean or sum
at::Tensor loss(const Values& a, size_t reduction) {
  const auto& input = a[0].toTensor();
  if (a[reduction].toInt() != at::Reduction::None) return tensor_like(input, {});
  return tensor_like(input, at::infer_size(input.sizes(), a[1].toTensor().sizes()));
}
Values loss_with_reduction_third(const Values& a) {
  return {loss(a, 2)};
}
Values loss_with_reduction_fourth(const Values& a) {
  return {loss(a, 3)};
}

// condition, self, other
Values where(const Values& a) {
  const auto sizes = at::infer_size(a[1].toTensor().sizes(), a[2].toTensor().sizes());
  return {tensor_like(a[1].toTensor(), at::infer_size(a[0].toTensor().sizes(), sizes))
              .to(at::result_type(a[1].toTensor(), a[2].toTensor()))};
}

// The sizes without some dimensions, or with 1 in their place; no list, or an empty one, means all.
at::Tensor reduced(const at::Tensor& input, const c10::IValue& dimensions, bool keep) {
  std::vector<int64_t> sizes = input.sizes().vec();
  std::vector<bool> is_reduced(sizes.size(), dimensions.isNone() || dimensions.toIntVector().empty());
  if (!dimensions.isNone()) {
    for (const int64_t dimension : dimensions.toIntVector())
      is_reduced.at(static_cast<size_t>(at::maybe_wrap_dim(dimension, input.dim()))) = true;
  }
  std::vector<int64_t> left;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!is_reduced[i]) left.push_back(sizes[i]);
    if (is_reduced[i] && keep) left.push_back(1);
  }
  return tensor_like(input, left);
}

// self, dim, keepdim
Values logsumexp(const Values& a) {
  return {reduced(a[0].toTensor(), a[1], a[2].toBool())};
}

// self, dim, unbiased or correction, keepdim
Values deviation(const Values& a) {
  return {reduced(a[0].toTensor(), a[1], a[3].toBool())};
}

// input, normalized_shape, ...
Values layer_norm(const Values& a) {
  const auto& input = a[0].toTensor();
  const auto shape = a[1].toIntVector();
  const auto sizes = input.sizes();
  TORCH_CHECK(sizes.size() >= shape.size() && sizes.slice(sizes.size() - shape.size()).equals(shape),
              "Given normalized_shape=", at::IntArrayRef(shape), ", expected input with shape [*, ",
              at::IntArrayRef(shape), "], but got input of size", sizes);
  return {tensor_like(input, sizes)};
}

// input, weight, bias, running_mean, ...: as many of each as channels
Values batch_norm(const Values& a) {
  const auto& input = a[0].toTensor();
  const int64_t channels = input.dim() > 1 ? input.size(1) : input.size(0);
  for (size_t i = 1; i <= 4; ++i) {
    if (!a[i].isTensor() || !a[i].toTensor().defined()) continue;
    TORCH_CHECK(a[i].toTensor().numel() == channels, "batch norm of ", channels, " channels is given ",
                a[i].toTensor().numel(), " weights, biases, means or variances");
  }
  return {tensor_like(input, input.sizes())};
}

// weight, indices, ...
Values embedding(const Values& a) {
  const auto& weight = a[0].toTensor();
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D, but has size ", weight.sizes());
  std::vector<int64_t> sizes = a[1].toTensor().sizes().vec();
  sizes.push_back(weight.size(1));
  return {tensor_like(weight, sizes)};
}

// self, dim, index
Values index_select(const Values& a) {
  const auto& self = a[0].toTensor();
  const auto& index = a[2].toTensor();
  TORCH_CHECK(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
  std::vector<int64_t> sizes = self.sizes().vec();
  if (!sizes.empty())
    sizes[static_cast<size_t>(at::maybe_wrap_dim(a[1].toInt(), self.dim()))] = index.numel();
  return {tensor_like(self, sizes)};
}

const std::unordered_map<std::string, Values (*)(const Values&)> kShapeFunctions = {
    {"aten::conv1d", conv},
    {"aten::conv1d.padding", conv},
    {"aten::conv2d", conv},
    {"aten::conv2d.padding", conv},
    {"aten::conv3d", conv},
    {"aten::conv3d.padding", conv},
    {"aten::conv_transpose1d", conv_transpose},
    {"aten::conv_transpose2d.input", conv_transpose},
    {"aten::conv_transpose3d.input", conv_transpose},
    {"aten::convolution", convolution},
    {"aten::_convolution", convolution},
    {"aten::_convolution.deprecated", convolution},
    {"aten::batch_norm", batch_norm},
    {"aten::instance_norm", as_first},
    {"aten::group_norm", as_first},
    {"aten::layer_norm", layer_norm},
    {"aten::embedding", embedding},
    {"aten::index_select", index_select},
    {"aten::abs", as_first},
    {"aten::hardtanh", as_first},
    {"aten::log_sigmoid", as_first},
    {"aten::nan_to_num", as_first},
    {"aten::relu", as_first},
    {"aten::relu6", as_first},
    {"aten::rrelu", as_first},
    {"aten::isfinite", truths},
    {"aten::isinf", truths},
    {"aten::isnan", truths},
    {"aten::logical_not", truths},
    {"aten::max", scalar_as_first},
    {"aten::median", scalar_as_first},
    {"aten::min", scalar_as_first},
    {"aten::flip", as_first},
    {"aten::roll", as_first},
    {"aten::hardswish", as_first},
    {"aten::prelu", as_first},
    {"aten::l1_loss", loss_with_reduction_third},
    {"aten::huber_loss", loss_with_reduction_third},
    {"aten::binary_cross_entropy", loss_with_reduction_fourth},
    {"aten::where.self", where},
    {"aten::logsumexp", logsumexp},
    {"aten::std", scalar_as_first},
    {"aten::std.dim", deviation},
    {"aten::std.correction", deviation},
    {"aten::var", scalar_as_first},
    {"aten::var.dim", deviation},
    {"aten::var.correction", deviation},
};

}  // namespace

std::optional<Values> apply_shape_function(const std::string& op, const Values& arguments) {
  const auto found = kShapeFunctions.find(op);
  if (found == kShapeFunctions.end()) return std::nullopt;
  return found->second(arguments);
}

}  // namespace muster::detail
