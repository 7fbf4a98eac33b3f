// Operations in flight, groups of groups, and what travels compressed or encrypted.

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/testing/rank_group.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::RankGroup;

TEST(Asynchronous, ManyOperationsAreInFlightAndMatchedByOrder) {
  for (const auto& hosts : {std::vector<int>{}, {0, 1, 2}, {0, 0, 1}}) {
    const auto errors = RankGroup({.ranks = 3, .hosts = hosts}).run([](Communicator& comm) {
      constexpr size_t kOperations = 200;
      std::vector<std::vector<float>> data(kOperations);
      std::vector<Work> works;
      for (size_t i = 0; i < kOperations; ++i) {
        data[i].assign(1 + i * 37 % 3000, static_cast<float>(comm.rank() + 1) * static_cast<float>(i));
        works.push_back(comm.all_reduce_async(data[i].data(), data[i].size(), DType::kFloat32));
      }
      float last = 1;
      comm.all_reduce(&last, 1, DType::kFloat32);  // takes its turn behind them
      EXPECT_EQ(last, 3);
      for (size_t i = kOperations; i-- > 0;) {
        works[i].wait();
        EXPECT_TRUE(works[i].done());
        for (const float value : data[i]) ASSERT_EQ(value, 6 * static_cast<float>(i));
      }
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(Asynchronous, EveryCollectiveGivesWhatItGivesWhenItIsWaitedFor) {
  for (const auto& hosts : {std::vector<int>{}, {0, 1, 2}, {0, 0, 1}}) {
    const auto errors = RankGroup({.ranks = 3, .hosts = hosts}).run([](Communicator& comm) {
      constexpr size_t kCount = 1000;
      const auto mine = static_cast<float>(comm.rank() + 1);
      const std::vector<float> blocks(3 * kCount, mine);
      std::vector<float> scattered(kCount);
      std::vector<float> gathered(3 * kCount);
      std::vector<float> from_all(3 * kCount);
      std::vector<float> from_root(kCount, mine);
      std::vector<float> to_root(kCount, mine);
      std::vector<Work> works;
      works.push_back(comm.reduce_scatter_async(blocks.data(), scattered.data(), kCount, DType::kFloat32));
      works.push_back(comm.all_gather_async(blocks.data(), gathered.data(), kCount, DType::kFloat32));
      works.push_back(comm.all_to_all_async(blocks.data(), from_all.data(), kCount, DType::kFloat32));
      works.push_back(comm.broadcast_async(from_root.data(), kCount, DType::kFloat32, 2));
      works.push_back(comm.reduce_async(to_root.data(), kCount, DType::kFloat32, ReduceOp::kMax, 1));
      for (auto& work : works) work.wait();
      EXPECT_THAT(scattered, Each(6.0F));
      for (const auto& received : {gathered, from_all}) {
        for (size_t i = 0; i < received.size(); ++i)
          ASSERT_EQ(received[i], static_cast<float>(i / kCount + 1));
      }
      EXPECT_THAT(from_root, Each(3.0F));
      EXPECT_THAT(to_root, Each(comm.rank() == 1 ? 3.0F : mine));
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(Asynchronous, MessagesCrossWithoutWaitingForEachOther) {
  for (const auto& hosts : {std::vector<int>{}, {0, 1, 2}}) {
    const auto errors = RankGroup({.ranks = 3, .hosts = hosts}).run([](Communicator& comm) {
      // Everyone sends to everyone before anyone receives, far more than a link holds.
      constexpr size_t kCount = 1'000'000;
      std::vector<float> mine(kCount, static_cast<float>(comm.rank()));
      std::vector<std::vector<float>> theirs(3, std::vector<float>(kCount));
      std::vector<Work> works;
      for (int peer = 0; peer < 3; ++peer) {
        if (peer != comm.rank()) works.push_back(comm.send_async(mine.data(), kCount, DType::kFloat32, peer));
      }
      comm.barrier();  // beside the messages
      for (int peer = 2; peer >= 0; --peer) {
        if (peer != comm.rank())
          comm.receive(theirs[static_cast<size_t>(peer)].data(), kCount, DType::kFloat32, peer);
      }
      for (auto& work : works) work.wait();
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == comm.rank()) continue;
        for (const float value : theirs[static_cast<size_t>(peer)])
          ASSERT_EQ(value, static_cast<float>(peer));
      }
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(Asynchronous, AWaitThatGivesUpBreaksTheGroup) {
  const auto errors = RankGroup({.ranks = 2}).run([](Communicator& comm) {
    float value = 1;
    if (comm.rank() == 0) {
      Work work = comm.all_reduce_async(&value, 1, DType::kFloat32);
      EXPECT_FALSE(work.done());
      EXPECT_THROW(work.wait(Deadline::after(100ms)), DeadlineExceeded);
      EXPECT_THROW(comm.barrier(), DeadlineExceeded);
      throw Error("as it should be");
    }
    comm.receive(&value, 1, DType::kFloat32, 0, Deadline::after(30s));
  });
  EXPECT_EQ(errors[0], "as it should be");
  EXPECT_THAT(errors[1], ::testing::Not(""));
}

TEST(Asynchronous, WhatAnOperationKeepsLivesUntilItIsDone) {
  const auto errors = RankGroup({.ranks = 2}).run([](Communicator& comm) {
    float word = 0;
    if (comm.rank() == 1) comm.receive(&word, 1, DType::kFloat32, 0);
    auto data = std::make_shared<std::vector<float>>(1000, 1.0F);
    const std::weak_ptr<std::vector<float>> watch = data;
    const Operation operation = {
        .collective = Collective::kAllReduce, .in = data->data(), .out = data->data(), .count = data->size()};
    Work work = comm.submit(operation, std::move(data));
    if (comm.rank() == 0) {
      EXPECT_FALSE(watch.expired());
      comm.send(&word, 1, DType::kFloat32, 1);
    }
    work.wait();
    EXPECT_TRUE(watch.expired());
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Asynchronous, WhatAnOperationKeepsIsFreedWithTheCommunicator) {
  std::weak_ptr<float> watch;
  const auto errors = RankGroup({.ranks = 2}).run([&](Communicator& comm) {
    if (comm.rank() == 1) throw Error("this one leaves");
    auto number = std::make_shared<float>(1);
    watch = number;
    Operation operation = {
        .collective = Collective::kReceive, .in = number.get(), .out = number.get(), .count = 1, .peer = 1};
    comm.submit(operation, number);
    comm.submit(operation, std::move(number));  // which waits for the first to end
  });
  EXPECT_EQ(errors[1], "this one leaves");
  EXPECT_TRUE(watch.expired());
}

TEST(History, KeepsTheLastOperations) {
  const auto errors = RankGroup({.ranks = 2}).run([](Communicator& comm) {
    std::vector<float> data(100);
    for (int i = 0; i < 100; ++i) comm.all_reduce(data.data(), 100, DType::kFloat32);
    comm.broadcast(data.data(), 7, DType::kInt32, 1);
    const std::string history = comm.history();
    EXPECT_THAT(history, HasSubstr("101 broadcast(int32 x 7, root 1): done"));
    EXPECT_THAT(history, HasSubstr("38 all_reduce(float32 x 100, sum): done"));
    EXPECT_THAT(history, ::testing::Not(HasSubstr("\n37 all_reduce")));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Split, MakesAGroupForEachColourInTheOrderOfKeys) {
  for (const auto& hosts : {std::vector<int>{}, {0, 1, 2, 3, 4}, {0, 0, 1, 1, 1}}) {
    const auto errors = RankGroup({.ranks = 5, .hosts = hosts}).run([](Communicator& comm) {
      // Even ranks in reverse order, odd ones in theirs; rank 4 in none.
      const int colour = comm.rank() == 4 ? -1 : comm.rank() % 2;
      const auto group = comm.split(colour, colour == 0 ? -comm.rank() : 0);
      if (comm.rank() == 4) {
        EXPECT_EQ(group, nullptr);
        return;
      }
      ASSERT_NE(group, nullptr);
      EXPECT_EQ(group->size(), 2);
      EXPECT_EQ(group->rank(), colour == 0 ? (comm.rank() == 0 ? 1 : 0) : comm.rank() / 2);
      const auto memory = comm.allocate(40'000);  // of the whole group, used in the split
      auto* data = static_cast<float*>(memory.get());
      for (size_t i = 0; i < 10'000; ++i) data[i] = static_cast<float>(comm.rank() + 1);
      group->all_reduce(data, 10'000, DType::kFloat32);
      for (size_t i = 0; i < 10'000; ++i) ASSERT_EQ(data[i], colour == 0 ? 4 : 6);
      int first = comm.rank();
      group->broadcast(&first, 1, DType::kInt32, 0);
      EXPECT_EQ(first, colour == 0 ? 2 : 1);
      const auto again = group->split(0);  // a group of a group
      again->barrier();
      group->barrier();
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(WireDType, SumsTravelCompressedAndAllRanksEndWithTheSameBits) {
  for (const auto wire_dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const auto algorithm : {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kDoubling,
                                 Algorithm::kDirect, Algorithm::kHierarchical}) {
      for (const auto& hosts : {std::vector<int>{0, 1, 2}, {0, 0, 1, 1}}) {
        SCOPED_TRACE(fmt::format("{} {} {} ranks", name_of(wire_dtype), name_of(algorithm), hosts.size()));
        std::vector<std::vector<float>> results(hosts.size());
        const auto errors =
            RankGroup({.ranks = static_cast<int>(hosts.size()),
                       .hosts = hosts,
                       .communicator = {.algorithm = algorithm, .wire_dtype = wire_dtype, .segment = 1000}})
                .run([&](Communicator& comm) {
                  std::vector<float> data(3001);
                  for (size_t i = 0; i < data.size(); ++i)
                    data[i] = std::sin(static_cast<float>(i + 1000 * static_cast<size_t>(comm.rank())));
                  comm.all_reduce(data.data(), data.size(), DType::kFloat32);
                  results[static_cast<size_t>(comm.rank())] = data;
                });
        ASSERT_THAT(errors, Each(""));
        const float tolerance =
            (wire_dtype == DType::kFloat16 ? 0.001F : 0.01F) * static_cast<float>(hosts.size());
        bool rounded = false;
        for (size_t i = 0; i < 3001; ++i) {
          float sum = 0;
          for (size_t rank = 0; rank < hosts.size(); ++rank)
            sum += std::sin(static_cast<float>(i + 1000 * rank));
          ASSERT_NEAR(results[0][i], sum, tolerance) << i;
          rounded |= results[0][i] != sum;
        }
        EXPECT_TRUE(rounded) << "nothing was compressed";
        for (const auto& result : results)
          EXPECT_EQ(memcmp(result.data(), results[0].data(), 3001 * sizeof(float)), 0) << "bits differ";
      }
    }
  }
}

TEST(WireDType, OtherTypesAndOperationsTravelAsTheyAre) {
  const auto errors =
      RankGroup({.ranks = 2, .hosts = {0, 1}, .communicator = {.wire_dtype = DType::kFloat16}})
          .run([](Communicator& comm) {
            double precise = 1.0 + 1e-12;
            comm.all_reduce(&precise, 1, DType::kFloat64);
            EXPECT_EQ(precise, 2.0 + 2e-12);
            float fine = 1.0F + 1e-6F;
            comm.all_reduce(&fine, 1, DType::kFloat32, ReduceOp::kMax);
            EXPECT_EQ(fine, 1.0F + 1e-6F);
          });
  EXPECT_THAT(errors, Each(""));
}

TEST(Tls, CollectivesRunEncrypted) {
  std::string name = (std::filesystem::temp_directory_path() / "muster-tls-XXXXXX").string();
  const std::string folder = mkdtemp(name.data());
  ASSERT_EQ(std::system(fmt::format("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
                                    "-days 2 -subj /CN=task -keyout {0}/key -out {0}/cert >/dev/null 2>&1",
                                    folder)
                            .c_str()),
            0);
  const auto errors = RankGroup({.ranks = 3,
                                 .hosts = {0, 1, 2},
                                 .communicator = {.sockets = 2},
                                 .tls = {folder + "/cert", folder + "/key", folder + "/cert"}})
                          .run([](Communicator& comm) {
                            std::vector<float> data(1'000'000, static_cast<float>(comm.rank()));
                            comm.all_reduce(data.data(), data.size(), DType::kFloat32);
                            for (const float value : data) ASSERT_EQ(value, 3);
                          });
  EXPECT_THAT(errors, Each(""));
  std::filesystem::remove_all(folder);
}

TEST(SharedHost, IsOneForAllThreadsThatAskForIt) {
  const auto errors = RankGroup({.ranks = 2}).run([](Communicator& comm) {
    std::array<SharedHost*, 4> found{};
    std::vector<std::thread> threads;
    for (auto& host : found) threads.emplace_back([&] { host = &comm.host(); });
    for (auto& thread : threads) thread.join();
    for (const SharedHost* host : found) {
      if (host != &comm.host()) throw InvalidArgument("there are two");
    }
    comm.barrier();
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace muster::detail
