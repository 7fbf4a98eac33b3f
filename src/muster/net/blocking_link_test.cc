#include "muster/net/blocking_link.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/net/endpoint.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

struct TooLate {};

// Two ends of one link.
class BlockingLinkTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    std::vector<Connection> ours;
    std::vector<Connection> theirs;
    for (int i = 0; i < GetParam(); ++i) {
      const std::string channel_name = std::to_string(i);
      ours.push_back(connecting_.connect(accepting_.address(), channel_name, deadline_));
      theirs.push_back(accepting_.accept(channel_name, deadline_));
    }
    near_ = std::make_unique<BlockingLink>(std::move(ours), false);
    far_ = std::make_unique<BlockingLink>(std::move(theirs), false);
  }

  void check() const {
    if (deadline_.expired()) throw TooLate{};
  }

  static std::vector<iovec> parts_of(std::vector<uint8_t>& bytes, const std::vector<size_t>& sizes) {
    std::vector<iovec> parts;
    size_t at = 0;
    for (const size_t size : sizes) {
      parts.push_back({bytes.data() + at, size});
      at += size;
    }
    return parts;
  }

  const Deadline deadline_ = Deadline::after(60s);
  Endpoint connecting_{{.secret = "s"}};
  Endpoint accepting_{{.secret = "s"}};
  std::unique_ptr<BlockingLink> near_;
  std::unique_ptr<BlockingLink> far_;
};

INSTANTIATE_TEST_SUITE_P(Sockets, BlockingLinkTest, ::testing::Values(1, 3));

// Made of words, as single bytes take seconds under a sanitizer.
std::vector<uint8_t> random_bytes(size_t count, std::mt19937& random) {
  std::vector<uint8_t> bytes(count);
  for (size_t at = 0; at < count; at += 4) {
    const auto word = static_cast<uint32_t>(random());
    std::memcpy(bytes.data() + at, &word, std::min<size_t>(4, count - at));
  }
  return bytes;
}

// Sends all in one way of cutting, and receives it in another.
TEST_P(BlockingLinkTest, BytesComeAsTheyWentHoweverTheyAreCut) {
  std::mt19937 random(7);
  std::vector<size_t> small(3000);
  for (auto& size : small) size = random() % 5000;
  small[5] = 0;
  const size_t total = std::accumulate(small.begin(), small.end(), size_t{0});
  const std::vector<size_t> large = {total / 2, 1, total - total / 2 - 1};
  for (const auto& [out, in] : {std::pair(small, large), std::pair(large, small), std::pair(small, small)}) {
    std::vector<uint8_t> sent = random_bytes(total, random);
    std::vector<uint8_t> received(total);
    std::thread sender([&, &out = out] { near_->send(parts_of(sent, out), [this] { check(); }); });
    for (const auto& part : parts_of(received, in)) far_->receive({&part, 1}, [this] { check(); });
    sender.join();
    EXPECT_EQ(sent, received);
  }
}

TEST_P(BlockingLinkTest, WhatDoesNotGoAtOnceIsLeftToTheCaller) {
  std::mt19937 random(8);
  const auto pattern = random_bytes(99'991, random);
  std::vector<uint8_t> sent;
  while (sent.size() < 64 << 20) sent.insert(sent.end(), pattern.begin(), pattern.end());
  const iovec all = {sent.data(), sent.size()};
  const size_t gone = near_->send_some({&all, 1}, /*may_yield=*/true);  // nobody receives
  ASSERT_LT(gone, sent.size());
  EXPECT_GT(gone, 0U);
  std::vector<uint8_t> received(sent.size());
  std::thread receiver([&] {
    const iovec part = {received.data(), received.size()};
    far_->receive({&part, 1}, [this] { check(); });
  });
  const iovec rest = {sent.data() + gone, sent.size() - gone};
  near_->send({&rest, 1}, [this] { check(); });
  receiver.join();
  EXPECT_EQ(sent, received);
}

TEST_P(BlockingLinkTest, BothDirectionsAtTheSameTime) {
  std::vector<uint8_t> sent(8 << 20, 1);
  std::vector<uint8_t> answered(8 << 20, 2);
  std::vector<uint8_t> at_far(sent.size());
  std::vector<uint8_t> at_near(sent.size());
  const auto send = [this](BlockingLink& link, std::vector<uint8_t>& bytes) {
    const iovec part = {bytes.data(), bytes.size()};
    link.send({&part, 1}, [this] { check(); });
  };
  const auto receive = [this](BlockingLink& link, std::vector<uint8_t>& bytes) {
    const iovec part = {bytes.data(), bytes.size()};
    link.receive({&part, 1}, [this] { check(); });
  };
  std::vector<std::thread> threads;
  threads.emplace_back([&] { send(*near_, sent); });
  threads.emplace_back([&] { send(*far_, answered); });
  threads.emplace_back([&] { receive(*far_, at_far); });
  receive(*near_, at_near);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(at_far, sent);
  EXPECT_EQ(at_near, answered);
}

TEST_P(BlockingLinkTest, TheEndOfThePeerIsTold) {
  near_.reset();
  EXPECT_THROW(far_->receive_one<uint64_t>([this] { check(); }), PeerLost);
}

TEST_P(BlockingLinkTest, AWaitAsksWhetherToGoOn) {
  EXPECT_THROW(far_->receive_one<uint64_t>([] { throw TooLate{}; }), TooLate);
}

}  // namespace
}  // namespace muster::detail
