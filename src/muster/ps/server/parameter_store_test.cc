#include "muster/ps/server/parameter_store.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/optim/rules.h"

namespace muster::detail {
namespace {

using ::testing::ElementsAre;

constexpr size_t kSmall = 21;         // variable a [3, 7]
constexpr size_t kLarge = 280 * 257;  // variable b [280, 257]: several chunks
constexpr size_t kBias = 5;           // variable c [5]: in one chunk with the end of b

std::vector<float> random_values(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

/// What one worker has for all slices.
struct Gradients {
  explicit Gradients(unsigned seed)
      : values{random_values(kSmall, seed), random_values(kLarge, seed + 1), random_values(kBias, seed + 2)} {
    for (const auto& slice : values) data.push_back(slice.data());
  }
  std::vector<std::vector<float>> values;
  SliceData data;
};

/// A store of its own.
class Store {
 public:
  explicit Store(UpdateRulePtr rule, double clip_norm = 0, int threads = 3)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(64, bytes())), std::free) {
    std::memset(memory_.get(), 0, bytes());
    view_.emplace(placement_, 0, memory_.get());
    store_.emplace(ParameterStore::Options{.placement = placement_,
                                           .server = 0,
                                           .rule = std::move(rule),
                                           .clip_norm = clip_norm,
                                           .threads = threads},
                   *view_);
    store_->initialise(Gradients(100).data);
  }

  void apply(std::vector<ParameterStore::WeightedData> sources, double divisor = 1, double lr = 0.1) {
    std::atomic<size_t> done{0};
    store_->apply({.sources = std::move(sources), .divisor = divisor, .lr = lr, .version = ++version_},
                  [&](size_t chunk) {
                    EXPECT_EQ(view_->version(chunk).load(), version_);
                    ++done;
                  });
    EXPECT_EQ(done.load(), view_->chunks().size());
  }

  std::vector<float> values(size_t slice) const {
    const Slice& where = placement_.slices(0)[slice];
    const float* begin = view_->parameters() + where.offset;
    return {begin, begin + where.count};
  }

  std::vector<std::vector<float>> all() const { return {values(0), values(1), values(2)}; }
  ParameterStore& operator*() { return *store_; }

 private:
  size_t bytes() const { return (StoreView::bytes(placement_, 0) + 63) / 64 * 64; }

  const Placement placement_{{{"a", {3, 7}}, {"b", {280, 257}}, {"c", {5}}}, 1, PlacementKind::kSliced};
  std::unique_ptr<std::byte, decltype(&std::free)> memory_;
  std::optional<StoreView> view_;
  std::optional<ParameterStore> store_;
  int64_t version_ = 0;
};

TEST(ParameterStore, WhatIsAccumulatedCountsAsIfItCameWithTheUpdate) {
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

TEST(ParameterStore, AccumulatedGradientsAloneMakeAnUpdate) {
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

TEST(ParameterStore, TheNumberOfThreadsChangesNoBit) {
  const Gradients one(1);
  const Gradients two(2);
  Store alone(lamb(), 0.5, 1);
  Store shared(lamb(), 0.5, 4);
  for (int i = 0; i < 3; ++i) {
    alone.apply({{&one.data, 1}, {&two.data, 1}}, 2);
    shared.apply({{&one.data, 1}, {&two.data, 1}}, 2);
  }
  EXPECT_EQ(alone.all(), shared.all());
}

TEST(ParameterStore, ClipsTheNormOfAllVariablesTogetherAsTorchDoes) {
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

TEST(ParameterStore, LarsMeasuresTheWholeVariableAndNotItsChunks) {
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

TEST(ParameterStore, EachVariableCountsItsOwnUpdates) {
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

}  // namespace
}  // namespace muster::detail
