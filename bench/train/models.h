#pragma once

// The models of `muster bench train` in libtorch C++, and data for them; peers/train_ddp.py has the same in
// Python.
//
//   a  MLP 784-1024-1024-10
//   b  CNN like LeNet for 28x28: 5x5 convolutions of 32 and 64, each with a pool; 1024-512-10
//   c  MLP 784-4096-4096-10
//   d  ResNet-18 for 32x32, of width 32
//
// The data is random: normal inputs, uniform labels. There are a few batches of inputs and many of labels,
// their numbers without a common divisor: each input meets so many labels that the loss can't go to 0, where
// gradients would become denormal numbers, and slow.

#include <cstdint>
#include <string>
#include <vector>

#include <torch/torch.h>

namespace muster::detail::bench {

struct TrainModel {
  torch::nn::Sequential net;
  std::vector<int64_t> input;  ///< the shape of one sample
};

/// `name` is a letter of the table above. Throws std::invalid_argument.
TrainModel make_model(const std::string& name);

class RandomBatches {
 public:
  RandomBatches(const TrainModel& model, int64_t batch, int rank);

  struct Batch {
    torch::Tensor inputs;
    torch::Tensor labels;
  };
  Batch next();

 private:
  std::vector<torch::Tensor> inputs_;
  std::vector<torch::Tensor> labels_;
  size_t step_ = 0;
};

}  // namespace muster::detail::bench
