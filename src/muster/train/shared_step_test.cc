#include "muster/train/shared_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/testing/rank_group.h"

namespace muster::detail {
namespace {

using ::testing::Each;
using testing::RankGroup;

constexpr SharedStep::Shape kShape = {.parameters = 3, .ranges = 5, .buckets = 2};

// Runs `body` as each of the workers of one host, with what they share.
std::vector<std::string> as_workers(int workers,
                                    const std::function<void(Communicator&, SharedStep&)>& body) {
  return RankGroup({.ranks = workers}).run([&](Communicator& comm) {
    SharedStep shared(comm.host(), kShape);
    body(comm, shared);
    comm.barrier();  // nobody goes while another reads
  });
}

TEST(SharedStep, NothingIsSaidAtFirst) {
  EXPECT_THAT(as_workers(2,
                         [](Communicator& comm, SharedStep& shared) {
                           for (int i = 0; i < comm.size(); ++i) {
                             EXPECT_FALSE(shared.has_begun(i, 1));
                             EXPECT_FALSE(shared.completed(i, 1));
                             EXPECT_FALSE(shared.settled(i, 1, 2));
                             EXPECT_FALSE(shared.busy(i));
                           }
                           EXPECT_EQ(shared.counter(0).claimed(), 0u);
                           EXPECT_EQ(shared.round_reduced(), 0u);
                         }),
              Each(""));
}

TEST(SharedStep, WhatAWorkerSaysReachesTheOthers) {
  EXPECT_THAT(
      as_workers(3,
                 [](Communicator& comm, SharedStep& shared) {
                   const int rank = comm.rank();
                   auto gradient = comm.allocate(sizeof(float));
                   *static_cast<float*>(gradient.get()) = 10.0f + static_cast<float>(rank);
                   shared.begin(1, {.weight = 1.0 + rank, .total = 2.0, .lr = 0.1, .changed = rank == 1});
                   shared.deliver(1, 2, comm.host().offset_of(gradient.get(), sizeof(float)), rank == 2);
                   comm.barrier();
                   for (int i = 0; i < comm.size(); ++i) {
                     ASSERT_TRUE(shared.has_begun(i, 1));
                     EXPECT_EQ(shared.contribution(i, 1).weight, 1.0 + i);
                     EXPECT_EQ(shared.contribution(i, 1).changed, i == 1);
                     ASSERT_TRUE(shared.settled(i, 1, 2));
                     const auto delivery = shared.delivery(i, 1, 2);
                     ASSERT_TRUE(delivery.exists);
                     EXPECT_EQ(*static_cast<const float*>(delivery.data), 10.0f + static_cast<float>(i));
                     EXPECT_EQ(delivery.held, i == 2);
                     EXPECT_FALSE(shared.settled(i, 1, 0));  // it may still come
                     EXPECT_FALSE(shared.completed(i, 1));
                   }
                   comm.barrier();
                   shared.complete(1, 0.5 * rank);
                   comm.barrier();
                   for (int i = 0; i < comm.size(); ++i) {
                     ASSERT_TRUE(shared.completed(i, 1));
                     EXPECT_EQ(shared.loss(i, 1), 0.5 * i);
                     EXPECT_TRUE(shared.settled(i, 1, 0));  // it does not come
                     EXPECT_FALSE(shared.delivery(i, 1, 0).exists);
                   }
                 }),
      Each(""));
}

// One worker is a round ahead: what it said in the round before stays as it was.
TEST(SharedStep, AWorkerMayBeARoundAhead) {
  EXPECT_THAT(as_workers(2,
                         [](Communicator& comm, SharedStep& shared) {
                           auto gradient = comm.allocate(2 * sizeof(float));
                           auto* values = static_cast<float*>(gradient.get());
                           values[0] = 1;
                           values[1] = 2;
                           const auto offset_of = [&](const float* value) {
                             return comm.host().offset_of(value, sizeof(float));
                           };
                           if (comm.rank() == 0) {
                             for (uint64_t round = 1; round <= 2; ++round) {
                               shared.begin(round, {.weight = static_cast<double>(round)});
                               shared.deliver(round, 1, offset_of(values + round - 1), false);
                               if (round == 1) shared.complete(round, 7);
                             }
                           }
                           comm.barrier();
                           EXPECT_TRUE(shared.has_begun(0, 2));
                           EXPECT_FALSE(shared.completed(0, 2));
                           EXPECT_FALSE(shared.has_begun(1, 1));
                           EXPECT_EQ(shared.loss(0, 1), 7);
                           for (uint64_t round = 1; round <= 2; ++round) {
                             EXPECT_EQ(shared.contribution(0, round).weight, static_cast<double>(round));
                             EXPECT_EQ(*static_cast<const float*>(shared.delivery(0, round, 1).data),
                                       static_cast<float>(round));
                           }
                         }),
              Each(""));
}

// Each unit of work is claimed once, whoever claims.
TEST(SharedStep, WorkIsClaimedOnceAndCountedWhenDone) {
  constexpr uint64_t kUnits = 10'000;
  std::vector<std::atomic<int>> claims(kUnits);
  EXPECT_THAT(as_workers(3,
                         [&](Communicator&, SharedStep& shared) {
                           auto& counter = shared.counter(1);
                           while (const auto next = counter.claim(kUnits)) {
                             ++claims[*next];
                             counter.finish(kUnits);
                           }
                           wait_until(
                               shared.doorbell(), {.spins = 0, .yields = 100},
                               [&] { return counter.is_done(kUnits); }, [] {});
                         }),
              Each(""));
  EXPECT_THAT(claims, Each(::testing::Truly([](const std::atomic<int>& claim) { return claim == 1; })));
}

// A worker that sleeps is woken by what another says.
TEST(SharedStep, SayingSomethingWakesTheOthers) {
  EXPECT_THAT(
      as_workers(2,
                 [](Communicator& comm, SharedStep& shared) {
                   for (uint64_t round = 1; round <= 50; ++round) {
                     const int other = 1 - comm.rank();
                     shared.begin(round, {});
                     wait_until(
                         shared.doorbell(), {}, [&] { return shared.has_begun(other, round); }, [] {});
                     shared.complete(round, 0);
                     wait_until(
                         shared.doorbell(), {}, [&] { return shared.completed(other, round); }, [] {});
                   }
                 }),
      Each(""));
}

}  // namespace
}  // namespace muster::detail
