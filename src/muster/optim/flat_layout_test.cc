#include "muster/optim/flat_layout.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

std::vector<ParameterInfo> mixed_parameters() {
  return {{"fc2.bias", {10}, DType::kFloat32},       {"fc2.weight", {10, 7}, DType::kFloat32},
          {"empty", {0, 3}, DType::kFloat32},        {"wide", {300, 400}, DType::kFloat64},
          {"narrow", {100, 1000}, DType::kBFloat16}, {"scale", {}, DType::kFloat32}};
}

TEST(ParameterInfo, CountsItsElements) {
  EXPECT_EQ((ParameterInfo{"scalar", {}}.count()), 1U);
  EXPECT_EQ((ParameterInfo{"none", {3, 0}}.count()), 0U);
  EXPECT_EQ((ParameterInfo{"fc1.weight", {128, 512}, DType::kBFloat16}.bytes()), 2U * 128 * 512);
  EXPECT_EQ((ParameterInfo{"fc1.weight", {128, 512}}.to_string()), "fc1.weight float32 [128, 512]");
}

TEST(FlatLayout, SlicesLieApartOnCacheLines) {
  for (const auto& layout :
       {FlatLayout(mixed_parameters()),
        FlatLayout(mixed_parameters(), {{1, 3, 50}, {3, 0, 100'000}, {4, 99'000, 1000}})}) {
    size_t end = 0;
    size_t state_end = 0;
    for (size_t i = 0; i < layout.size(); ++i) {
      EXPECT_EQ(layout.offset(i) % 64, 0U);
      EXPECT_GE(layout.offset(i), end);
      EXPECT_GE(layout.state_offset(i), state_end);
      const size_t count = layout.slices()[i].count;
      EXPECT_EQ(layout.bytes(i), count * size_of(layout[i].dtype));
      end = layout.offset(i) + layout.bytes(i);
      state_end = layout.state_offset(i) + count * size_of(layout[i].state_dtype());
    }
    EXPECT_LE(end, layout.bytes());
    EXPECT_LE(state_end, layout.state_bytes());
    EXPECT_TRUE(layout.has_masters());
  }
}

TEST(FlatLayout, WholeParametersAreSlicesOfTheSameNumber) {
  const FlatLayout layout(mixed_parameters());
  ASSERT_EQ(layout.size(), mixed_parameters().size());
  for (size_t i = 0; i < layout.size(); ++i) EXPECT_EQ(layout[i], mixed_parameters()[i]);
}

TEST(FlatLayout, ChunksCoverEveryElementOnceInOrderAndJoinWhatIsSmallAndOfOneType) {
  const FlatLayout layout(mixed_parameters());
  std::vector<size_t> covered(layout.size());
  size_t next = 0;
  for (const auto& chunk : layout.chunks()) {
    EXPECT_EQ(chunk.first, next);
    EXPECT_GT(chunk.ranges, 0U);
    next += chunk.ranges;
    size_t count = 0;
    for (const auto& range : layout.ranges_of(chunk)) {
      EXPECT_EQ(range.begin, covered[range.slice]);
      EXPECT_GT(range.count, 0U);
      covered[range.slice] += range.count;
      count += range.count;
      EXPECT_EQ(layout[range.slice].state_dtype(), layout[layout.ranges()[chunk.first].slice].state_dtype());
    }
    EXPECT_LE(count, chunk.ranges == 1 ? size_t{32} * 1024 : size_t{8} * 1024);
  }
  EXPECT_EQ(next, layout.ranges().size());
  for (size_t i = 0; i < layout.size(); ++i) EXPECT_EQ(covered[i], layout[i].count()) << layout[i].name;
  EXPECT_EQ(layout.chunks().front().ranges, 2U) << "fc2.bias and fc2.weight";
  const FlatLayout many(std::vector<ParameterInfo>(1000, {"small", {1024}}));
  EXPECT_LT(many.chunks().size(), 150U) << "and not a thousand";
}

TEST(FlatLayout, OffsetsOfRangesGoOnFromThoseOfTheirSlices) {
  const FlatLayout layout(mixed_parameters(), {{3, 1000, 90'000}, {4, 0, 70'000}});
  for (const auto& range : layout.ranges()) {
    EXPECT_EQ(layout.offset(range), layout.offset(range.slice) + range.begin * (range.slice == 0 ? 8 : 2));
    EXPECT_EQ(layout.state_offset(range),
              layout.state_offset(range.slice) + range.begin * (range.slice == 0 ? 8 : 4));
  }
}

TEST(FlatLayout, OfNothingIsEmpty) {
  const FlatLayout layout({});
  EXPECT_EQ(layout.bytes(), 0U);
  EXPECT_TRUE(layout.chunks().empty());
}

}  // namespace
}  // namespace muster::detail
