#include "muster/optim/shard_update.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/dtype.h"
#include "muster/optim/rules.h"

namespace muster::detail {
namespace {

using ::testing::ElementsAre;

constexpr size_t kSmall = 21;         // parameter a [3, 7]
constexpr size_t kLarge = 280 * 257;  // parameter b [280, 257]: several chunks
constexpr size_t kBias = 5;           // parameter c [5]: in one chunk with the end of b

std::vector<float> random_values(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<ParameterInfo> parameters_of(DType dtype = DType::kFloat32) {
  return {{"a", {3, 7}, dtype}, {"b", {280, 257}, dtype}, {"c", {5}, dtype}};
}

/// What one worker has for all slices.
struct Gradients {
  explicit Gradients(unsigned seed)
      : values{random_values(kSmall, seed), random_values(kLarge, seed + 1), random_values(kBias, seed + 2)} {
    for (const auto& slice : values) data.push_back(slice.data());
  }
  std::vector<std::vector<float>> values;
  ShardUpdate::SliceData data;
};

void run_in_threads(size_t count, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (size_t item = next++; item < count; item = next++) work(item);
    });
  }
  for (auto& thread : threads) thread.join();
}

/// A shard that is the whole model.
class Store {
 public:
  explicit Store(const UpdateRulePtr& rule, double clip_norm = 0, bool threads = true)
      : memory_(layout_.bytes()),
        shard_({.layout = layout_,
                .rule = rule,
                .parameters = memory_.data(),
                .clip_norm = clip_norm,
                .run = threads ? run_in_threads : ShardUpdate::run_alone}) {
    shard_.initialise(Gradients(100).data);
  }

  ShardUpdate::Result apply(const std::vector<ShardUpdate::Source>& sources, double divisor = 1,
                            double lr = 0.1) {
    std::atomic<size_t> done{0};
    const auto result =
        shard_.apply({.sources = sources, .divisor = divisor, .lr = lr}, [&](size_t) { ++done; });
    EXPECT_EQ(done.load(), layout_.chunks().size());
    return result;
  }

  std::vector<float> values(size_t slice) const {
    const auto* begin = reinterpret_cast<const float*>(memory_.data() + layout_.offset(slice));
    return {begin, begin + layout_.slices()[slice].count};
  }

  std::vector<std::vector<float>> all() const { return {values(0), values(1), values(2)}; }
  ShardUpdate& operator*() { return shard_; }

 private:
  const FlatLayout layout_{parameters_of()};
  std::vector<std::byte> memory_;
  ShardUpdate shard_;
};

TEST(ShardUpdate, WhatIsAccumulatedCountsAsIfItCameWithTheUpdate) {
  const Gradients one(1);
  const Gradients two(2);
  const Gradients three(3);
  for (const double clip_norm : {0.0, 0.5}) {
    Store at_once(sgd({.lr = 0.1, .momentum = 0.9}), clip_norm);
    Store accumulating(sgd({.lr = 0.1, .momentum = 0.9}), clip_norm);
    for (int i = 0; i < 3; ++i) {
      at_once.apply({{&one.data, 1}, {&two.data, 0.5}, {&three.data, 2}}, 3.5);
      (*accumulating).accumulate({&one.data, 1});
      (*accumulating).accumulate({&two.data, 0.5});
      accumulating.apply({{&three.data, 2}}, 3.5);
      ASSERT_EQ(at_once.all(), accumulating.all()) << "bit for bit";
    }
  }
}

TEST(ShardUpdate, AccumulatedGradientsAloneMakeAnUpdate) {
  const Gradients one(1);
  Store at_once(sgd({.lr = 0.1}));
  Store accumulating(sgd({.lr = 0.1}));
  at_once.apply({{&one.data, 1}});
  (*accumulating).accumulate({&one.data, 1});
  accumulating.apply({});
  EXPECT_EQ(at_once.all(), accumulating.all());
  accumulating.apply({});
  EXPECT_EQ(at_once.all(), accumulating.all()) << "they are used up";
}

TEST(ShardUpdate, TheNumberOfThreadsChangesNoBit) {
  const Gradients one(1);
  const Gradients two(2);
  Store alone(lamb(), 0.5, /*threads=*/false);
  Store shared(lamb(), 0.5);
  for (int i = 0; i < 3; ++i) {
    alone.apply({{&one.data, 1}, {&two.data, 1}}, 2);
    shared.apply({{&one.data, 1}, {&two.data, 1}}, 2);
  }
  EXPECT_EQ(alone.all(), shared.all());
}

TEST(ShardUpdate, ClipsTheNormOfAllVariablesTogetherAsTorchDoes) {
  const Gradients one(1);
  const Gradients two(2);
  const auto before = Gradients(100).values;
  const auto mean = [&](size_t slice, size_t i) {
    return (static_cast<double>(one.values[slice][i]) + two.values[slice][i]) / 2;
  };
  double square = 0;
  for (size_t slice = 0; slice < 3; ++slice) {
    for (size_t i = 0; i < one.values[slice].size(); ++i) square += mean(slice, i) * mean(slice, i);
  }
  const double norm = std::sqrt(square);
  for (const double clip_norm : {norm / 8, norm * 2}) {
    Store store(sgd({.lr = 0.5}), clip_norm);
    store.apply({{&one.data, 1}, {&two.data, 1}}, 2, 0.5);
    const double factor = std::min(1.0, clip_norm / (norm + 1e-6));
    for (size_t slice = 0; slice < 3; ++slice) {
      const auto after = store.values(slice);
      for (size_t i = 0; i < after.size(); ++i)
        ASSERT_NEAR(after[i], before[slice][i] - 0.5 * factor * mean(slice, i), 2e-6);
    }
  }
}

TEST(ShardUpdate, LarsMeasuresTheWholeVariableAndNotItsChunks) {
  const Gradients one(1);
  const auto before = Gradients(100).values;
  Store store(lars({.lr = 0.1, .momentum = 0, .weight_decay = 0.01, .trust = 0.02}));
  store.apply({{&one.data, 1}});
  const auto norm = [](const std::vector<float>& values) {
    double square = 0;
    for (const double value : values) square += value * value;
    return std::sqrt(square);
  };
  for (size_t slice = 0; slice < 3; ++slice) {
    const double parameter = norm(before[slice]);
    const double ratio =
        slice == 2 ? 1 : 0.02 * parameter / (norm(one.values[slice]) + 0.01 * parameter + 1e-8);
    const auto after = store.values(slice);
    for (size_t i = 0; i < after.size(); ++i) {
      const double decayed = one.values[slice][i] + 0.01 * before[slice][i];
      ASSERT_NEAR(after[i], before[slice][i] - 0.1 * ratio * decayed, 1e-6) << "variable " << slice;
    }
  }
}

TEST(ShardUpdate, EachVariableCountsItsOwnUpdates) {
  const Gradients one(1);
  Gradients without_large(1);
  without_large.data[1] = nullptr;
  for (const double clip_norm : {0.0, 1e9}) {
    Store store(adam({.lr = 0.1}), clip_norm);
    const auto untouched = store.values(1);
    store.apply({{&without_large.data, 1}});
    store.apply({{&without_large.data, 1}});
    EXPECT_THAT((*store).updates(), ElementsAre(2, 0, 2));
    EXPECT_EQ(store.values(1), untouched);
    store.apply({{&one.data, 1}});
    EXPECT_THAT((*store).updates(), ElementsAre(3, 1, 3));
    // The first step of Adam, with its bias corrected, is the learning rate.
    const auto after = store.values(1);
    for (size_t i = 0; i < after.size(); ++i)
      ASSERT_NEAR(after[i], untouched[i] - std::copysign(0.1, one.values[1][i]), 1e-3);
    store.apply({});
    EXPECT_THAT((*store).updates(), ElementsAre(3, 1, 3)) << "nobody had a gradient";
  }
}

TEST(ShardUpdate, SaysWhichSliceIsNotFiniteAndInPassesKeepsTheParameters) {
  Gradients bad(1);
  bad.values[1][70'000] = std::numeric_limits<float>::infinity();
  Store at_once(sgd({.lr = 0.1}));
  EXPECT_EQ(at_once.apply({{&bad.data, 1}}).not_finite, 1U);
  Store in_passes(sgd({.lr = 0.1}), 1.0);
  const auto before = in_passes.all();
  EXPECT_EQ(in_passes.apply({{&bad.data, 1}}).not_finite, 1U);
  EXPECT_EQ(in_passes.all(), before);
  EXPECT_FALSE((*in_passes).accumulate({&bad.data, 1}));
  Store well(sgd({.lr = 0.1}));
  const Gradients good(1);
  EXPECT_FALSE(well.apply({{&good.data, 1}}).not_finite.has_value());
}

/// One shard in a thread of its own, of several that add up numbers.
class Shards {
 public:
  Shards(int count, const UpdateRulePtr& rule, double clip_norm) {
    const std::vector<ParameterInfo> parameters = parameters_of();
    for (int i = 0; i < count; ++i) {
      std::vector<Slice> slices;
      for (size_t p = 0; p < parameters.size(); ++p) {
        const size_t size = parameters[p].count();
        const size_t begin = size * static_cast<size_t>(i) / static_cast<size_t>(count);
        const size_t end = size * static_cast<size_t>(i + 1) / static_cast<size_t>(count);
        if (end > begin) slices.push_back({p, begin, end - begin});
      }
      layouts_.push_back(std::make_unique<FlatLayout>(parameters, slices));
      memory_.emplace_back(layouts_.back()->bytes());
    }
    for (int i = 0; i < count; ++i) {
      const auto index = static_cast<size_t>(i);
      shards_.push_back(std::make_unique<ShardUpdate>(
          ShardUpdate::Options{.layout = *layouts_[index],
                               .rule = rule,
                               .parameters = memory_[index].data(),
                               .clip_norm = clip_norm,
                               .add_up_shards = [this](std::span<double> values) { add_up(values); }}));
      shards_.back()->initialise(parts_of(Gradients(100), index));
    }
  }

  void apply(const Gradients& one, const Gradients& two) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < shards_.size(); ++i) {
      threads.emplace_back([&, i] {
        const auto first = parts_of(one, i);
        const auto second = parts_of(two, i);
        shards_[i]->apply({.sources = {{&first, 1}, {&second, 1}}, .divisor = 2, .lr = 0.1});
      });
    }
    for (auto& thread : threads) thread.join();
  }

  std::vector<std::vector<float>> all() const {
    std::vector<std::vector<float>> values = {std::vector<float>(kSmall), std::vector<float>(kLarge),
                                              std::vector<float>(kBias)};
    for (size_t i = 0; i < shards_.size(); ++i) {
      for (size_t s = 0; s < layouts_[i]->size(); ++s) {
        const Slice& slice = layouts_[i]->slices()[s];
        std::memcpy(values[slice.parameter].data() + slice.begin, memory_[i].data() + layouts_[i]->offset(s),
                    layouts_[i]->bytes(s));
      }
    }
    return values;
  }

 private:
  ShardUpdate::SliceData parts_of(const Gradients& gradients, size_t shard) const {
    ShardUpdate::SliceData data;
    for (const Slice& slice : layouts_[shard]->slices())
      data.push_back(gradients.values[slice.parameter].data() + slice.begin);
    return data;
  }

  // Returns when all shards have come.
  void add_up(std::span<double> values) {
    std::unique_lock lock(mutex_);
    totals_.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) totals_[i] += values[i];
    const size_t mine = round_;
    if (++here_ == shards_.size()) {
      here_ = 0;
      ++round_;
      result_ = std::exchange(totals_, {});
      all_here_.notify_all();
    }
    all_here_.wait(lock, [&] { return round_ > mine; });
    std::ranges::copy(result_, values.begin());
  }

  std::vector<std::unique_ptr<FlatLayout>> layouts_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::unique_ptr<ShardUpdate>> shards_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<double> totals_;
  std::vector<double> result_;
  size_t here_ = 0;
  size_t round_ = 0;
};

TEST(ShardUpdate, SeveralShardsClipAndMeasureAsOneDoes) {
  const std::vector<std::pair<UpdateRulePtr, double>> cases = {
      {sgd({.lr = 0.1}), 0.5}, {lars({.lr = 0.1}), 0}, {lamb({.lr = 0.1}), 0.5}};
  for (const auto& [rule, clip_norm] : cases) {
    Store whole(rule, clip_norm);
    Shards shards(3, rule, clip_norm);
    for (unsigned step = 0; step < 3; ++step) {
      const Gradients one(10 * step);
      const Gradients two(10 * step + 5);
      whole.apply({{&one.data, 1}, {&two.data, 1}}, 2);
      shards.apply(one, two);
    }
    const auto expected = whole.all();
    const auto found = shards.all();
    for (size_t p = 0; p < expected.size(); ++p) {
      for (size_t i = 0; i < expected[p].size(); ++i)
        ASSERT_NEAR(found[p][i], expected[p][i], 1e-6) << rule->name();
    }
  }
}

TEST(ShardUpdate, SixteenBitParametersKeepSmallUpdatesInTheirMasters) {
  const FlatLayout layout({{"w", {1000}, DType::kBFloat16}});
  std::vector<BFloat16> memory(layout.bytes() / sizeof(BFloat16), to_bfloat16(1));
  const std::vector<BFloat16> gradient(1000, to_bfloat16(1));
  const ShardUpdate::SliceData data = {gradient.data()};
  for (const double clip_norm : {0.0, 1e9}) {
    std::ranges::fill(memory, to_bfloat16(1));
    ShardUpdate shard({.layout = layout,
                       .rule = sgd({.lr = 0.001}),
                       .parameters = reinterpret_cast<std::byte*>(memory.data()),
                       .clip_norm = clip_norm});
    shard.adopt_parameters();
    // Each step is below the resolution of a bfloat16 next to 1, which is 1/256.
    for (int step = 0; step < 100; ++step) {
      if (step % 2 == 0) {
        shard.apply({.sources = {{&data, 1}}, .lr = 0.001});
      } else {
        shard.accumulate({&data, 0.5});
        shard.apply({.sources = {{&data, 0.5}}, .lr = 0.001});
      }
    }
    for (size_t i = 0; i < 1000; ++i) {
      ASSERT_NEAR(reinterpret_cast<const float*>(shard.values(0))[i], 0.9, 1e-4);
      ASSERT_NEAR(to_float(memory[i]), 0.9, 1.0 / 256);
    }
  }
}

TEST(ShardUpdate, Float64HasItsOwnPrecision) {
  const FlatLayout layout({{"w", {3}, DType::kFloat64}});
  std::vector<double> memory(layout.bytes() / sizeof(double), 1);
  const std::vector<double> gradient = {1e-12, 2e-12, 3e-12};
  const ShardUpdate::SliceData data = {gradient.data()};
  ShardUpdate shard(
      {.layout = layout, .rule = sgd({.lr = 1}), .parameters = reinterpret_cast<std::byte*>(memory.data())});
  shard.accumulate({&data, 1});
  shard.apply({.sources = {{&data, 1}}, .divisor = 2, .lr = 1});
  EXPECT_EQ(memory[2], 1 - 3e-12);
}

}  // namespace
}  // namespace muster::detail
