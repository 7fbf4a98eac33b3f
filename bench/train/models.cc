#include "bench/train/models.h"

#include <stdexcept>

namespace muster::detail::bench {
namespace {

namespace nn = torch::nn;

constexpr int64_t kClasses = 10;
constexpr size_t kInputs = 8;
constexpr size_t kLabels = 101;

nn::Sequential make_mlp(int64_t width) {
  return nn::Sequential(nn::Linear(784, width), nn::ReLU(), nn::Linear(width, width), nn::ReLU(),
                        nn::Linear(width, kClasses));
}

nn::Sequential make_cnn() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 32, 5)), nn::ReLU(), nn::MaxPool2d(2),
                        nn::Conv2d(nn::Conv2dOptions(32, 64, 5)), nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(),
                        nn::Linear(1024, 512), nn::ReLU(), nn::Linear(512, kClasses));
}

nn::Conv2d convolution(int64_t in, int64_t out, int64_t size, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

class BasicBlockImpl : public nn::Module {
 public:
  BasicBlockImpl(int64_t in, int64_t out, int64_t stride)
      : body_(convolution(in, out, 3, stride), nn::BatchNorm2d(out), nn::ReLU(), convolution(out, out, 3, 1),
              nn::BatchNorm2d(out)) {
    register_module("body", body_);
    if (stride == 1 && in == out) return;
    shortcut_ = nn::Sequential(convolution(in, out, 1, stride), nn::BatchNorm2d(out));
    register_module("shortcut", shortcut_);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(body_->forward(x) + (shortcut_.is_empty() ? x : shortcut_->forward(x)));
  }

 private:
  nn::Sequential body_;
  nn::Sequential shortcut_ = nullptr;
};
TORCH_MODULE(BasicBlock);

nn::Sequential make_resnet(int64_t width) {
  nn::Sequential net(convolution(3, width, 3, 1), nn::BatchNorm2d(width), nn::ReLU());
  int64_t channels = width;
  for (const int64_t stage : {1, 2, 4, 8}) {
    net->push_back(BasicBlock(channels, width * stage, stage == 1 ? 1 : 2));
    channels = width * stage;
    net->push_back(BasicBlock(channels, channels, 1));
  }
  net->push_back(nn::AdaptiveAvgPool2d(1));
  net->push_back(nn::Flatten());
  net->push_back(nn::Linear(channels, kClasses));
  return net;
}

}  // namespace

TrainModel make_model(const std::string& name) {
  if (name == "a") return {make_mlp(1024), {784}};
  if (name == "b") return {make_cnn(), {1, 28, 28}};
  if (name == "c") return {make_mlp(4096), {784}};
  if (name == "d") return {make_resnet(32), {3, 32, 32}};
  throw std::invalid_argument("there is no model '" + name + "': a, b, c and d are the models");
}

RandomBatches::RandomBatches(const TrainModel& model, int64_t batch, int rank) {
  torch::manual_seed(static_cast<uint64_t>(rank) + 1);
  std::vector<int64_t> shape = model.input;
  shape.insert(shape.begin(), batch);
  for (size_t i = 0; i < kInputs; ++i) inputs_.push_back(torch::randn(shape));
  for (size_t i = 0; i < kLabels; ++i) labels_.push_back(torch::randint(kClasses, {batch}, torch::kLong));
}

RandomBatches::Batch RandomBatches::next() {
  const size_t step = step_++;
  return {inputs_[step % kInputs], labels_[step % kLabels]};
}

}  // namespace muster::detail::bench
