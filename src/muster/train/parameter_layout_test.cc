#include "muster/train/parameter_layout.h"

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

std::vector<ParameterInfo> mixed_parameters() {
  return {{"fc2.bias", DType::kFloat32, {10}},       {"fc2.weight", DType::kFloat32, {10, 7}},
          {"empty", DType::kFloat32, {0, 3}},        {"wide", DType::kFloat64, {300, 400}},
          {"narrow", DType::kBFloat16, {100, 1000}}, {"scale", DType::kFloat32, {}}};
}

TEST(ParameterLayout, ParametersLieApartOnCacheLines) {
  const ParameterLayout layout(mixed_parameters(), 1 << 20);
  size_t end = 0;
  size_t state_end = 0;
  for (size_t i = 0; i < layout.size(); ++i) {
    EXPECT_EQ(layout.offset(i) % 64, 0U);
    EXPECT_GE(layout.offset(i), end);
    EXPECT_GE(layout.state_offset(i), state_end);
    end = layout.offset(i) + layout[i].count() * size_of(layout[i].dtype);
    state_end = layout.state_offset(i) + layout[i].count() * size_of(layout[i].state_dtype());
  }
  EXPECT_LE(end, layout.bytes());
  EXPECT_LE(state_end, layout.state_bytes());
}

TEST(ParameterLayout, ChunksCoverEveryElementOnceInOrder) {
  const ParameterLayout layout(mixed_parameters(), 1 << 16);
  std::vector<size_t> covered(layout.size());
  size_t last = 0;
  for (const auto& chunk : layout.chunks()) {
    EXPECT_GE(chunk.parameter, last);
    last = chunk.parameter;
    EXPECT_EQ(chunk.begin, covered[chunk.parameter]);
    EXPECT_GT(chunk.count, 0U);
    covered[chunk.parameter] += chunk.count;
  }
  for (size_t i = 0; i < layout.size(); ++i) EXPECT_EQ(covered[i], layout[i].count()) << layout[i].name;
}

TEST(ParameterLayout, BucketsAreRunsOfChunksOfOneTypeThatDoNotOverlap) {
  const ParameterLayout layout(mixed_parameters(), 1 << 16);
  size_t chunk = 0;
  size_t end = 0;
  for (size_t b = 0; b < layout.buckets().size(); ++b) {
    const auto& bucket = layout.buckets()[b];
    EXPECT_EQ(bucket.first_chunk, chunk);
    EXPECT_GE(bucket.offset, end);
    for (size_t i = 0; i < bucket.chunks; ++i, ++chunk) {
      const auto& piece = layout.chunks()[chunk];
      EXPECT_EQ(piece.bucket, b);
      EXPECT_EQ(layout[piece.parameter].state_dtype(), bucket.dtype);
      const size_t begin = layout.state_offset(piece.parameter) + piece.begin * size_of(bucket.dtype);
      EXPECT_GE(begin, bucket.offset);
      EXPECT_LE(begin + piece.count * size_of(bucket.dtype),
                bucket.offset + bucket.count * size_of(bucket.dtype));
    }
    end = bucket.offset + bucket.count * size_of(bucket.dtype);
  }
  EXPECT_EQ(chunk, layout.chunks().size());
  EXPECT_GT(layout.buckets().size(), 3U);
}

TEST(ParameterLayout, OfNothingIsEmpty) {
  const ParameterLayout layout({}, 1 << 20);
  EXPECT_EQ(layout.bytes(), 0U);
  EXPECT_TRUE(layout.chunks().empty());
  EXPECT_TRUE(layout.buckets().empty());
}

}  // namespace
}  // namespace muster::detail
