#include "muster/core_binding.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

using Cores = std::vector<std::vector<int>>;

// Two NUMA nodes of two physical cores with two threads each, numbered as Linux does: first all first
// threads.
std::vector<Core> two_nodes() {
  std::vector<Core> cores;
  for (int number = 0; number < 8; ++number) {
    const int physical = number % 4;
    cores.push_back(
        {.number = number, .numa_node = physical / 2, .package = physical / 2, .physical = physical % 2});
  }
  return cores;
}

TEST(CoreBinding, ThreadsOfAPhysicalCoreStayTogether) {
  EXPECT_EQ(bind_to_cores(CoreBinding::kCores, two_nodes(), 4), (Cores{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(bind_to_cores(CoreBinding::kCores, two_nodes(), 2), (Cores{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(bind_to_cores(CoreBinding::kCores, two_nodes(), 1), (Cores{{0, 1, 2, 3, 4, 5, 6, 7}}));
}

TEST(CoreBinding, EveryCoreHasATaskAndEveryTaskACore) {
  for (int tasks = 1; tasks <= 20; ++tasks) {
    const auto bound = bind_to_cores(CoreBinding::kCores, two_nodes(), tasks);
    std::vector<int> uses(8);
    for (const auto& cores : bound) {
      EXPECT_FALSE(cores.empty()) << tasks;
      for (const int core : cores) ++uses.at(static_cast<size_t>(core));
    }
    EXPECT_GE(*std::ranges::min_element(uses), 1) << tasks;
    EXPECT_LE(*std::ranges::max_element(uses), (tasks + 7) / 8) << tasks;
  }
}

TEST(CoreBinding, TasksAreSpreadOverNumaNodes) {
  EXPECT_EQ(bind_to_cores(CoreBinding::kNuma, two_nodes(), 3),
            (Cores{{0, 1, 4, 5}, {0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(bind_to_cores(CoreBinding::kNuma, two_nodes(), 2), (Cores{{0, 1, 4, 5}, {2, 3, 6, 7}}));
}

TEST(CoreBinding, WithoutBindingNoTaskHasCoresOfItsOwn) {
  EXPECT_EQ(bind_to_cores(CoreBinding::kNone, two_nodes(), 2), (Cores{{}, {}}));
}

TEST(CoreBinding, CoresAreWrittenAsTheKernelDoes) {
  EXPECT_EQ(format_cores({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(parse_cores("0-3,8,10-11"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(format_cores({}), "");
  EXPECT_EQ(parse_cores(""), std::vector<int>{});
}

TEST(CoreBinding, ThisProcessHasCores) {
  const auto cores = list_cores();
  ASSERT_FALSE(cores.empty());
  EXPECT_TRUE(std::ranges::is_sorted(cores, {}, &Core::number));
}

}  // namespace
}  // namespace muster::detail
