#include "muster/ps/placement.h"

#include <algorithm>
#include <random>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Names = std::vector<std::string>;

constexpr PlacementKind kKinds[] = {PlacementKind::kRoundRobin, PlacementKind::kBalanced,
                                    PlacementKind::kSliced};
constexpr int kMostServers = 7;

std::vector<ParameterInfo> vectors(const std::vector<int64_t>& sizes) {
  std::vector<ParameterInfo> variables;
  for (const int64_t size : sizes) variables.push_back({fmt::format("v{}", variables.size()), {size}});
  return variables;
}

// Two layers of each sort, as in a small convolutional net; the first fully connected one has most bytes.
std::vector<ParameterInfo> small_net() {
  return {{"conv1.weight", {32, 1, 5, 5}},  {"conv1.bias", {32}},
          {"conv2.weight", {64, 32, 5, 5}}, {"conv2.bias", {64}},
          {"fc1.weight", {512, 784}},       {"fc1.bias", {512}},
          {"fc2.weight", {10, 512}},        {"fc2.bias", {10}}};
}

std::vector<std::vector<ParameterInfo>> models() {
  std::vector<std::vector<ParameterInfo>> models = {
      {}, vectors({1}), vectors({0, 3, 0}), vectors({151}), vectors({7, 1, 300, 2}), small_net()};
  std::mt19937_64 generator(1);
  for (int i = 0; i < 50; ++i) {
    std::vector<int64_t> sizes(1 + generator() % 12);
    for (int64_t& size : sizes) size = static_cast<int64_t>(generator() % (i % 2 == 0 ? 100 : 20'000));
    models.push_back(vectors(sizes));
  }
  return models;
}

Names names_on(const Placement& placement, int server) {
  Names names;
  for (const Slice& slice : placement.layout(server).slices()) {
    names.push_back(placement.variables()[slice.parameter].name);
  }
  return names;
}

template <typename Check>
void for_each_placement(const Check& check) {
  for (const auto& variables : models()) {
    for (int servers = 1; servers <= kMostServers; ++servers) {
      for (const PlacementKind kind : kKinds) {
        SCOPED_TRACE(fmt::format("{} variables, {} servers, {}", variables.size(), servers, to_string(kind)));
        check(Placement(variables, servers, kind));
      }
    }
  }
}

TEST(Placement, HoldsEveryElementExactlyOnce) {
  for_each_placement([](const Placement& placement) {
    std::vector<std::vector<int>> held;
    for (const ParameterInfo& variable : placement.variables()) held.emplace_back(variable.count());
    for (int server = 0; server < placement.servers(); ++server) {
      for (const Slice& slice : placement.layout(server).slices()) {
        ASSERT_LE(slice.begin + slice.count, held[slice.parameter].size());
        for (size_t i = 0; i < slice.count; ++i) ++held[slice.parameter][slice.begin + i];
      }
    }
    for (const auto& variable : held) {
      ASSERT_TRUE(std::ranges::all_of(variable, [](int times) { return times == 1; }));
    }
  });
}

TEST(Placement, SlicesAreInTheOrderOfTheVariables) {
  for_each_placement([](const Placement& placement) {
    for (int server = 0; server < placement.servers(); ++server) {
      size_t bytes = 0;
      size_t next_variable = 0;
      for (const Slice& slice : placement.layout(server).slices()) {
        EXPECT_GT(slice.count, 0);
        EXPECT_GE(slice.parameter, next_variable);
        next_variable = slice.parameter + 1;
        bytes += slice.count * sizeof(float);
      }
      EXPECT_EQ(placement.bytes(server), bytes);
    }
  });
}

TEST(Placement, VariablesOfOtherTypesCountByTheirBytes) {
  const std::vector<ParameterInfo> mixed = {
      {"a", {3000}, DType::kFloat64}, {"b", {6000}, DType::kFloat32}, {"c", {12'001}, DType::kBFloat16}};
  const Placement sliced(mixed, 2, PlacementKind::kSliced);
  EXPECT_NEAR(static_cast<double>(sliced.bytes(0)), static_cast<double>(sliced.bytes(1)), 130);
  EXPECT_EQ(sliced.bytes(0) + sliced.bytes(1), 72'002U);
  const Placement balanced(mixed, 3, PlacementKind::kBalanced);
  for (int server = 0; server < 3; ++server)
    EXPECT_NEAR(static_cast<double>(balanced.bytes(server)), 24'000, 2);
}

TEST(Placement, SlicedServersCarryEqualBytes) {
  for_each_placement([](const Placement& placement) {
    if (placement.kind() != PlacementKind::kSliced) return;
    size_t least = SIZE_MAX;
    size_t most = 0;
    for (int server = 0; server < placement.servers(); ++server) {
      least = std::min(least, placement.bytes(server));
      most = std::max(most, placement.bytes(server));
    }
    // No cut is finer than an element.
    EXPECT_LE(most, std::max(least + sizeof(float), least + least / 20));
  });
}

TEST(Placement, LargeVariablesAreCutAtMultiplesOfSixteen) {
  const Placement large(vectors({5, 100'001}), 7, PlacementKind::kSliced);
  for (int server = 0; server < 7; ++server) {
    for (const Slice& slice : large.layout(server).slices()) EXPECT_EQ(slice.begin % 16, 0);
  }
  const Placement small(vectors({21}), 2, PlacementKind::kSliced);
  EXPECT_THAT(small.layout(0).slices(), ElementsAre(Slice{.parameter = 0, .begin = 0, .count = 10}));
  EXPECT_THAT(small.layout(1).slices(), ElementsAre(Slice{.parameter = 0, .begin = 10, .count = 11}));
}

TEST(Placement, RoundRobinGoesByTheIndex) {
  const Placement placement(vectors({1, 1000, 1, 1, 0, 1}), 2, PlacementKind::kRoundRobin);
  EXPECT_EQ(names_on(placement, 0), (Names{"v0", "v2"}));
  EXPECT_EQ(names_on(placement, 1), (Names{"v1", "v3", "v5"}));
}

TEST(Placement, BalancedGivesTheLargestFirstToTheLightestServer) {
  const Placement placement(vectors({10, 50, 40, 20, 30}), 2, PlacementKind::kBalanced);
  EXPECT_EQ(names_on(placement, 0), (Names{"v0", "v1", "v3"}));
  EXPECT_EQ(names_on(placement, 1), (Names{"v2", "v4"}));
}

TEST(Placement, TheSameVariablesGiveTheSamePlacement) {
  for_each_placement([](const Placement& placement) {
    const Placement again(placement.variables(), placement.servers(), placement.kind());
    for (int server = 0; server < placement.servers(); ++server) {
      EXPECT_EQ(again.layout(server).slices(), placement.layout(server).slices());
    }
  });
}

TEST(Placement, SaysWhatEachServerHolds) {
  EXPECT_EQ(Placement(small_net(), 2, PlacementKind::kSliced).to_string(),
            "server 0: 897 KiB in 5 variables: conv1.weight, conv1.bias, conv2.weight, conv2.bias, "
            "fc1.weight[0:177472]\n"
            "server 1: 897 KiB in 4 variables: fc1.weight[177472:401408], fc1.bias, fc2.weight, fc2.bias\n");
  EXPECT_THAT(Placement(vectors({1, 1, 1, 1, 1, 1, 1}), 1, PlacementKind::kBalanced).to_string(),
              HasSubstr("28 B in 7 variables: v0, v1, v2, v3, v4, v5, ...\n"));
  EXPECT_EQ(Placement(vectors({1}), 2, PlacementKind::kRoundRobin).to_string(),
            "server 0: 4 B in 1 variable: v0\nserver 1: 0 B in 0 variables\n");
}

TEST(Placement, KindsAreReadAsTheyAreWritten) {
  for (const PlacementKind kind : kKinds) EXPECT_EQ(parse_placement(to_string(kind)), kind);
  EXPECT_THROW(parse_placement("sliced "), InvalidArgument);
  EXPECT_THROW(parse_placement(""), InvalidArgument);
}

TEST(Placement, RefusesNoServersAndNegativeSizes) {
  EXPECT_THROW(Placement({}, 0, PlacementKind::kSliced), InvalidArgument);
  EXPECT_THROW(Placement({{"w", {3, -1}}}, 1, PlacementKind::kSliced), InvalidArgument);
}

}  // namespace
}  // namespace muster::detail
