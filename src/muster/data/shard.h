#pragma once

// The part of a data set that one of several workers trains on, as indices of its samples.
//
//   Shard shard(train.size(), {.worker = 1, .workers = 2});
//   for (const at::Tensor& index : shard.epoch(3, 64)) ... train.images.index_select(0, index) ...
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
    int worker = 0;
    int workers = 1;
    uint64_t seed = 0;
  };

  /// Throws InvalidArgument when there is no such worker.
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
