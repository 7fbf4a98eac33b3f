#include "muster/shard.h"

#include <set>

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

std::multiset<int64_t> samples_of(const std::vector<at::Tensor>& batches) {
  std::multiset<int64_t> found;
  for (const auto& batch : batches) {
    for (int64_t i = 0; i < batch.numel(); ++i) found.insert(batch[i].item<int64_t>());
  }
  return found;
}

TEST(Shard, EverySampleIsInOneShardOfEachEpoch) {
  for (const int workers : {1, 2, 3, 7}) {
    for (const int64_t size : {0, 1, 5, 23}) {
      std::multiset<int64_t> all;
      for (int worker = 0; worker < workers; ++worker) {
        const Shard shard(size, {.rank = worker, .size = workers});
        const auto batches = shard.epoch(4, 3);
        EXPECT_EQ(static_cast<int64_t>(batches.size()), shard.batches(3));
        const auto mine = samples_of(batches);
        EXPECT_EQ(static_cast<int64_t>(mine.size()), shard.size());
        all.insert(mine.begin(), mine.end());
      }
      std::multiset<int64_t> expected;
      for (int64_t i = 0; i < size; ++i) expected.insert(i);
      EXPECT_EQ(all, expected) << workers << " workers, " << size << " samples";
    }
  }
}

TEST(Shard, EpochsAreShuffledDifferentlyAndRepeatably) {
  const Shard shard(100, {.rank = 0, .size = 2, .seed = 5});
  EXPECT_TRUE(shard.epoch(0, 50)[0].equal(shard.epoch(0, 50)[0]));
  EXPECT_FALSE(shard.epoch(0, 50)[0].equal(shard.epoch(1, 50)[0]));
}

TEST(Shard, RefusesAWorkerThatDoesNotExistAndAnEmptyBatch) {
  EXPECT_THROW(Shard(10, {.rank = 2, .size = 2}), InvalidArgument);
  EXPECT_THROW(Shard(-1, {}), InvalidArgument);
  EXPECT_THROW((void)Shard(10, {}).batches(0), InvalidArgument);
  EXPECT_THROW(Shard(10, {}).epoch(0, 0), InvalidArgument);
}

}  // namespace
}  // namespace muster::detail
