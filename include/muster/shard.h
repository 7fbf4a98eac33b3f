#pragma once

// The part of a data set that one of several workers trains on, as indices of its samples.
//
//   muster::Shard shard(images.size(0), {.rank = job.rank(), .size = job.size()});
//   for (int epoch = 0; epoch < 5; ++epoch)
//     for (const at::Tensor& index : shard.epoch(epoch, 64))
//       at::Tensor batch = images.index_select(0, index);
//
// In each epoch the samples are shuffled, equally on all workers, and dealt out: every sample is in the shard
// of one worker. Shards differ by at most one sample, so that workers may have different numbers of batches.
//
// A value: any thread may read it. Nothing blocks.

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

namespace muster {

class Shard {
 public:
  struct Options {
    int rank = 0;       ///< The worker's rank.
    int size = 1;       ///< The number of workers.
    uint64_t seed = 0;  ///< Another seed shuffles otherwise; it must be the same on all workers.
  };

  /// `size` is that of the data set. Throws InvalidArgument for a negative one, and when there is no such
  /// worker. batches, epoch and in_order throw it for a batch of less than one sample.
  Shard(int64_t size, Options options);

  int64_t size() const;                  ///< The number of samples in this worker's part.
  int64_t batches(int64_t batch) const;  ///< The number of batches of an epoch.
  /// The batches of an epoch, shuffled; the last may be smaller.
  std::vector<at::Tensor> epoch(int64_t epoch, int64_t batch) const;
  /// The batches of this worker's part in the order of the data set, for evaluation.
  std::vector<at::Tensor> in_order(int64_t batch) const;

 private:
  std::vector<at::Tensor> deal(const at::Tensor& order, int64_t batch) const;

  int64_t size_;
  Options options_;
};

}  // namespace muster
