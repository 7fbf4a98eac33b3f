#pragma once

// Batch normalisation over the batches of all workers together: what one process would compute with the whole
// batch. In place of torch::nn::BatchNorm1d, 2d or 3d:
//
//   muster::SyncBatchNorm norm{job, torch::nn::BatchNormOptions(64)};
//   torch::Tensor y = norm(x);                    // [batch, 64, ...]
//
// Every forward and backward pass in training adds up a few numbers for each channel over all workers, so all
// must run it equally often: it does not go with Trainer::finish_epoch, where some workers have no more data.
// It is exact for batches of equal size, and for any sizes under a loss that is a sum over samples. In
// evaluation it is an ordinary batch normalisation. Its parameters and buffers have the names of torch's.
//
// All workers make it, in the same order; making the first one may wait for them, to connect. One thread uses
// it. Forward and backward passes in training wait for all workers, and throw what a collective throws
// (communicator.h).

#include <torch/nn/module.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include "muster/job.h"

namespace muster {

class SyncBatchNormImpl : public torch::nn::Module {
 public:
  /// The job must outlive it.
  SyncBatchNormImpl(Job& job, const torch::nn::BatchNormOptions& options);

  torch::Tensor forward(const torch::Tensor& input);

  torch::Tensor weight;               ///< The factors; undefined unless the options say affine.
  torch::Tensor bias;                 ///< What is added; undefined likewise.
  torch::Tensor running_mean;         ///< The running mean; undefined unless track_running_stats.
  torch::Tensor running_var;          ///< The running variance; undefined likewise.
  torch::Tensor num_batches_tracked;  ///< The batches so far; undefined likewise.

 private:
  double momentum();

  Communicator& communicator_;
  const torch::nn::BatchNormOptions options_;
};
TORCH_MODULE(SyncBatchNorm);

}  // namespace muster
