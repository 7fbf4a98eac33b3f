#include "muster/train/buckets.h"

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

TEST(Buckets, AreRunsOfChunksOfOneTypeThatDoNotOverlap) {
  const FlatLayout layout({{"fc2.bias", {10}, DType::kFloat32},
                           {"empty", {0, 3}, DType::kFloat32},
                           {"wide", {300, 400}, DType::kFloat64},
                           {"narrow", {100, 1000}, DType::kBFloat16},
                           {"scale", {}, DType::kFloat32}});
  const Buckets buckets(layout, 1 << 16);
  size_t chunk = 0;
  size_t end = 0;
  for (size_t b = 0; b < buckets.size(); ++b) {
    const auto& bucket = buckets[b];
    EXPECT_EQ(bucket.first_chunk, chunk);
    EXPECT_GE(bucket.offset, end);
    for (size_t i = 0; i < bucket.chunks; ++i, ++chunk) {
      EXPECT_EQ(buckets.of(chunk), b);
      for (const auto& range : layout.ranges_of(layout.chunks()[chunk])) {
        EXPECT_EQ(layout[range.slice].state_dtype(), bucket.dtype);
        EXPECT_GE(layout.state_offset(range), bucket.offset);
        EXPECT_LE(layout.state_offset(range) + range.count * size_of(bucket.dtype),
                  bucket.offset + bucket.count * size_of(bucket.dtype));
      }
    }
    end = bucket.offset + bucket.count * size_of(bucket.dtype);
  }
  EXPECT_EQ(chunk, layout.chunks().size());
  EXPECT_GT(buckets.size(), 3U);
}

TEST(Buckets, OfNothingAreNone) {
  EXPECT_EQ(Buckets(FlatLayout({}), 1 << 20).size(), 0U);
}

}  // namespace
}  // namespace muster::detail
