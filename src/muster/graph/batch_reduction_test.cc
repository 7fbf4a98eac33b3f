#include "muster/graph/batch_reduction.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/ops.h"

namespace muster::detail {
namespace {

using ::testing::HasSubstr;

class OfLosses : public ::testing::Test {
 protected:
  BatchReduction of(const Output& loss) {
    std::vector<GraphNode*> nodes;
    for (auto& node : graph_.data().nodes) nodes.push_back(&node);
    return batch_reduction(loss, nodes);
  }

  Graph graph_;
  const Output x_ = graph_.placeholder("x", at::kFloat, {kBatch, 4});
  const Output labels_ = graph_.placeholder("labels", at::kLong, {kBatch});
  const Output w_ = graph_.variable("w", torch::ones({3, 4}));
  const Output scores_ = ops::linear(x_, w_);
  const Output mean_ = ops::cross_entropy_loss(scores_, labels_);
  const Output sum_ = ops::sum(ops::mul(scores_, scores_));
  const Output penalty_ = ops::mul(ops::sum(ops::mul(w_, w_)), 0.01);
};

TEST_F(OfLosses, MeansAreMeans) {
  EXPECT_EQ(of(mean_).kind, BatchReduction::kMean);
  EXPECT_EQ(of(ops::mean(scores_)).kind, BatchReduction::kMean);
  EXPECT_EQ(of(ops::add(mean_, penalty_)).kind, BatchReduction::kMean) << "of a constant it is the constant";
  EXPECT_EQ(of(ops::sub(ops::mul(mean_, 0.5), ops::mean(ops::mean(scores_, {0})))).kind,
            BatchReduction::kMean);
  EXPECT_EQ(of(ops::mse_loss(scores_, ops::relu(scores_))).kind, BatchReduction::kMean);
}

TEST_F(OfLosses, SumsAreSums) {
  EXPECT_EQ(of(sum_).kind, BatchReduction::kSum);
  EXPECT_EQ(of(ops::div(ops::neg(sum_), 64.0)).kind, BatchReduction::kSum) << "64 is no batch's size";
  EXPECT_EQ(of(ops::cross_entropy_loss(scores_, labels_, {}, at::Reduction::Sum)).kind, BatchReduction::kSum);
  EXPECT_EQ(of(ops::sum(ops::cross_entropy_loss(scores_, labels_, {}, at::Reduction::None))).kind,
            BatchReduction::kSum);
}

TEST_F(OfLosses, OthersAreNeitherAndSayWhy) {
  const auto why = [this](const Output& loss) {
    const auto found = of(loss);
    EXPECT_EQ(found.kind, BatchReduction::kNeither) << loss.name();
    return found.reason;
  };
  EXPECT_THAT(why(ops::add(sum_, penalty_)), HasSubstr("each micro-batch would do"));
  EXPECT_THAT(why(ops::add(sum_, 1.0)), HasSubstr("each micro-batch would do"));
  EXPECT_THAT(why(ops::add(sum_, mean_)), HasSubstr("adds a sum over the batch to a mean"));
  EXPECT_THAT(why(ops::sqrt(mean_)), HasSubstr("node 'sqrt' (aten::sqrt"));
  EXPECT_THAT(why(ops::mul(mean_, mean_)), HasSubstr("not linear"));
  EXPECT_THAT(why(ops::div(penalty_, mean_)), HasSubstr("not linear"));
  EXPECT_THAT(why(ops::cross_entropy_loss(scores_, labels_, graph_.constant(torch::ones({3})))),
              HasSubstr("divides by the weights of the samples"));
  EXPECT_THAT(why(ops::cross_entropy_loss(scores_, labels_, {}, at::Reduction::Mean, 0)),
              HasSubstr("divides by the weights of the samples"));
}

TEST_F(OfLosses, OfSamplesBesideOthersNothingIsKnown) {
  const auto kind = [this](const Output& samples) { return of(ops::mean(samples)).kind; };
  const std::vector<int64_t> batch = {0};
  EXPECT_EQ(kind(ops::softmax(scores_, 1)), BatchReduction::kMean) << "of each sample";
  EXPECT_EQ(kind(ops::flip(scores_, {1})), BatchReduction::kMean);
  EXPECT_EQ(kind(ops::softmax(scores_, 0)), BatchReduction::kUnknown);
  EXPECT_EQ(kind(ops::flip(scores_, {-2})), BatchReduction::kUnknown);
  EXPECT_EQ(kind(ops::cumsum(scores_, 0)), BatchReduction::kUnknown);
  EXPECT_EQ(kind(ops::slice(scores_, 0, 1)), BatchReduction::kUnknown);
  EXPECT_EQ(kind(ops::roll(scores_, {1})), BatchReduction::kUnknown);
  EXPECT_EQ(kind(ops::masked_select(scores_, ops::gt(scores_, 0.0))), BatchReduction::kUnknown);
  EXPECT_EQ(kind(ops::sub(scores_, ops::mean(scores_, batch, true))), BatchReduction::kUnknown);
  EXPECT_EQ(kind(ops::mul(scores_, mean_)), BatchReduction::kUnknown);
}

TEST_F(OfLosses, WhatDoesNotDependOnTheBatchSaysSo) {
  EXPECT_EQ(of(penalty_).kind, BatchReduction::kNothing);
  EXPECT_EQ(of(scores_).kind, BatchReduction::kSamples);
  EXPECT_EQ(of(ops::logsumexp(ops::logsumexp(scores_, {1}), {0})).kind, BatchReduction::kUnknown);
  EXPECT_EQ(of(ops::cross_entropy_loss(ops::matmul(x_, ops::t(x_)), labels_)).kind, BatchReduction::kUnknown)
      << "each sample beside all others";
}

TEST_F(OfLosses, TheSizeOfTheBatchMakesAMeanOfASum) {
  const auto by_size = [this](const char* op, const Output& value, int64_t dimension) {
    return graph_.add(op, {value, graph_.add("aten::size.int", {x_, dimension}).output()}).output();
  };
  EXPECT_EQ(of(by_size("aten::div.Scalar", sum_, 0)).kind, BatchReduction::kMean);
  EXPECT_EQ(of(by_size("aten::mul.Scalar", mean_, 0)).kind, BatchReduction::kSum);
  EXPECT_EQ(of(by_size("aten::div.Scalar", mean_, 0)).kind, BatchReduction::kNeither);
  EXPECT_EQ(of(by_size("aten::div.Scalar", sum_, 1)).kind, BatchReduction::kSum) << "no size of the batch";
}

}  // namespace
}  // namespace muster::detail
