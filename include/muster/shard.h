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

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

namespace muster {

class Shard {
 public:
  struct Options {
    int rank = 0;  ///< of the worker, and how many there are
    int size = 1;
    uint64_t seed = 0;
  };

  /// `size`: of the data set. Throws InvalidArgument for a negative one, and when there is no such worker;
  /// the others throw it for batches of less than one sample.
  Shard(int64_t size, Options options);

  int64_t size() const;                                               ///< of this worker's part
  int64_t batches(int64_t batch) const;                               ///< of an epoch
  std::vector<at::Tensor> epoch(int64_t epoch, int64_t batch) const;  ///< shuffled; the last may be smaller
  std::vector<at::Tensor> in_order(int64_t batch) const;              ///< for evaluation

 private:
  std::vector<at::Tensor> deal(const at::Tensor& order, int64_t batch) const;

  int64_t size_;
  Options options_;
};

}  // namespace muster
