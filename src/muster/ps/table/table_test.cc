#include "muster/ps/table/table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/ps/table/row_ids.h"

namespace muster::detail {
namespace {

TableOptions items(size_t width, RowRulePtr rule) {
  return {.name = "items", .width = width, .rule = std::move(rule), .scale = 0.5f, .seed = 7};
}

std::vector<float> pull(const Table& table, const std::vector<int64_t>& ids) {
  std::vector<float> rows(ids.size() * table.options().width);
  table.pull(ids, rows.data());
  return rows;
}

TEST(UniqueIds, EachIdIsThereOnceAndEveryOneIsFound) {
  const std::vector<int64_t> batch = {5, -1, 5, 9, -1, 5};
  const UniqueIds unique(batch);
  EXPECT_EQ(unique.ids, (std::vector<int64_t>{-1, 5, 9}));
  for (size_t i = 0; i < batch.size(); ++i) EXPECT_EQ(unique.ids[unique.position[i]], batch[i]);
  const std::vector<float> rows = {1, 10, 2, 20, 4, 40, 8, 80, 16, 160, 32, 320};
  EXPECT_EQ(unique.add_up(rows.data(), 2), (std::vector<float>{18, 180, 37, 370, 8, 80}));
  EXPECT_TRUE(UniqueIds({}).ids.empty());
}

TEST(UniqueIds, ServersGetEqualShares) {
  for (const size_t servers : {1, 2, 3, 8}) {
    std::vector<int> counts(servers);
    for (int64_t id = 0; id < 80000; ++id) ++counts[server_of(id * 8, servers)];
    for (const int count : counts) EXPECT_NEAR(count, 80000.0 / static_cast<double>(servers), 600);
  }
}

TEST(Table, InitialValuesFollowFromNameSeedAndIdAlone) {
  Table one(items(8, row_rule(sgd())));
  Table two(items(8, row_rule(sgd())));
  const std::vector<float> gradient(8);
  for (int64_t id = 100; id < 200; ++id) two.push(std::vector{id}, gradient.data());  // in another order
  const auto rows = pull(one, {3, 150, -8});
  EXPECT_EQ(rows, pull(two, {3, 150, -8}));
  EXPECT_EQ(std::set<float>(rows.begin(), rows.end()).size(), rows.size()) << "all differ";
  auto other = items(8, row_rule(sgd()));
  other.seed = 8;
  EXPECT_NE(rows, pull(Table(other), {3, 150, -8}));
  other = items(8, row_rule(sgd()));
  other.name = "users";
  EXPECT_NE(rows, pull(Table(other), {3, 150, -8}));
}

TEST(Table, InitialValuesAreUniformInTheScale) {
  const Table table(items(1000, row_rule(sgd())));
  double sum = 0;
  double squares = 0;
  float most = 0;
  for (int64_t id = 0; id < 100; ++id) {
    for (const float value : pull(table, {id})) {
      sum += value;
      squares += value * value;
      most = std::max(most, std::abs(value));
    }
  }
  EXPECT_LE(most, 0.5f);
  EXPECT_GT(most, 0.499f);
  EXPECT_NEAR(sum / 1e5, 0, 4e-3);
  EXPECT_NEAR(squares / 1e5, 0.25 / 3, 1e-3);
}

TEST(Table, ARowIsThereOnceItIsPushedTo) {
  Table table(items(4, row_rule(adam())));
  EXPECT_EQ(table.size().rows, 0u);
  pull(table, {1, 2, 3});
  EXPECT_EQ(table.size().rows, 0u);
  const std::vector<float> gradients(8, 1.0f);
  table.push(std::vector<int64_t>{2, std::numeric_limits<int64_t>::min()}, gradients.data());
  EXPECT_EQ(table.size().rows, 2u);
  EXPECT_GE(table.size().bytes, 2 * (8 + 8 + 3 * 4 * sizeof(float)));
}

TEST(Table, DuplicatesAreSummedInTheOrderGivenAndUpdateOnce) {
  Table twice(items(1, row_rule(adagrad({.lr = 1}))));
  Table once(items(1, row_rule(adagrad({.lr = 1}))));
  // In float32, the order of this sum decides whether the 1 survives.
  twice.push(std::vector<int64_t>{4, 9, 4, 4}, std::vector<float>{1e8f, 2, -1e8f, 1}.data());
  once.push(std::vector<int64_t>{4, 9}, std::vector<float>{1, 2}.data());
  EXPECT_EQ(pull(twice, {4, 9}), pull(once, {4, 9}));
}

// Against rows kept one by one, over many slabs and growths of the index.
TEST(Table, ManyRowsEachKeepTheirOwnState) {
  constexpr size_t kWidth = 6;
  const auto rule = row_rule(adam({.lr = 0.1}));
  Table table(items(kWidth, rule));
  struct Kept {
    std::vector<float> values;
    std::vector<float> state;
    int64_t updates = 0;
  };
  std::map<int64_t, Kept> expected;
  std::mt19937_64 generator(1);
  std::normal_distribution<float> normal;
  for (int push = 0; push < 200; ++push) {
    std::set<int64_t> batch;
    while (batch.size() < 400) batch.insert(static_cast<int64_t>(generator() % 30000) * 1024);
    const std::vector<int64_t> ids(batch.begin(), batch.end());
    std::vector<float> gradients(ids.size() * kWidth);
    for (float& gradient : gradients) gradient = normal(generator);
    for (size_t i = 0; i < ids.size(); ++i) {
      Kept& row = expected[ids[i]];
      if (row.values.empty()) row = {pull(table, {ids[i]}), std::vector<float>(2 * kWidth)};
      rule->apply({.values = row.values.data(), .states = row.state.data(), .width = kWidth},
                  gradients.data() + i * kWidth, ++row.updates);
    }
    table.push(ids, gradients.data());
  }
  EXPECT_EQ(table.size().rows, expected.size());
  EXPECT_GT(table.size().bytes, size_t{2} << 20) << "several slabs";
  for (const auto& [id, row] : expected) ASSERT_EQ(pull(table, {id}), row.values) << id;
}

TEST(Table, ThreadsPushAndPullAtOnce) {
  Table table(items(2, row_rule(sgd({.lr = 1}))));
  const auto before = pull(table, {0});
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::vector<float> gradients = {1, 1, 0, 0};
      for (int64_t i = 1; i <= 1000; ++i) {
        table.push(std::vector<int64_t>{0, i * 4 + t}, gradients.data());
        pull(table, {0, i});
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(table.size().rows, 4001u);
  EXPECT_NEAR(pull(table, {0})[0], before[0] - 4000, 1e-2);
}

TEST(Table, OptionsThatMakeNoSenseAreRefused) {
  EXPECT_THROW(Table({.name = "", .width = 1}), InvalidArgument);
  EXPECT_THROW(Table({.name = "t", .width = 0}), InvalidArgument);
  EXPECT_THROW(Table({.name = "t", .width = kWidestRow + 1}), InvalidArgument);
  EXPECT_THROW(Table({.name = "t", .width = 1, .rule = nullptr}), InvalidArgument);
  EXPECT_THROW(Table({.name = "t", .width = 1, .scale = NAN}), InvalidArgument);
}

}  // namespace
}  // namespace muster::detail
