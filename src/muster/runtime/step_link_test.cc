#include "muster/runtime/step_link.h"

#include <array>
#include <atomic>
#include <future>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/error.h"
#include "muster/net/endpoint.h"

namespace muster::detail {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr size_t kMebi = 1 << 20;

std::string thrown_by(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

// A link over a socket, whose receiver has little memory for tensors.
class StepLinkTest : public ::testing::Test {
 protected:
  StepLinkTest() {
    const auto deadline = Deadline::after(std::chrono::seconds(30));
    auto accepted = std::async(std::launch::async, [&] { return port_.accept("test", deadline); });
    sending_ = port_.connect_local(port_.local_name(), "test", deadline);
    receiver_ = std::make_unique<StepLink>(accepted.get(), StepLink::Options{.memory = &small_});
  }

  StepLink& sender() {
    if (!sender_)
      sender_ = std::make_unique<StepLink>(std::move(sending_), StepLink::Options{.memory = &memory_});
    return *sender_;
  }

  at::Tensor over(const at::Tensor& tensor) {
    sender().send({.kind = StepFrame::Kind::kValue, .key = 1, .step = 2, .value = tensor});
    return receiver_->receive().value.toTensor();
  }

  Endpoint port_{{.secret = "test"}};
  TaskMemory memory_;
  TaskMemory small_{/*is_shared=*/true, /*limit=*/kMebi};
  Connection sending_;
  std::unique_ptr<StepLink> sender_;
  std::unique_ptr<StepLink> receiver_;
};

TEST_F(StepLinkTest, WhatLibtorchWouldStillDoToATensorIsDone) {
  const at::Tensor z = torch::complex(torch::arange(4.0F), torch::ones({4}));
  for (const at::Tensor& tensor :
       {at::conj(z), at::imag(at::conj(z)), z.view({2, 2}).t(), z.slice(0, 1, 4, 2)})
    EXPECT_TRUE(torch::equal(over(tensor), tensor)) << tensor;
}

TEST_F(StepLinkTest, WhatIsNoDenseTensorIsRefusedAndTheLinkGoesOn) {
  for (const at::Tensor& tensor :
       {torch::eye(3).to_sparse(), torch::quantize_per_tensor(torch::ones({3}), 0.1, 0, torch::kQInt8)})
    EXPECT_THAT(thrown_by([&] { over(tensor); }), HasSubstr("can't go from task to task"));
  EXPECT_TRUE(torch::equal(over(torch::ones({3})), torch::ones({3})));
}

TEST_F(StepLinkTest, AValueForWhichThereIsNoMemoryIsSaidAndWhatFollowsIsRead) {
  auto sent = std::async(std::launch::async, [&] {
    sender().send({.kind = StepFrame::Kind::kValue, .step = 5, .value = torch::ones({2 * kMebi})});
    sender().send({.kind = StepFrame::Kind::kValue, .step = 6, .value = torch::ones({3})});
  });
  const StepFrame first = receiver_->receive();
  EXPECT_EQ(first.step, 5U);
  EXPECT_EQ(first.status.code, StepStatus::Code::kInvalidArgument);
  EXPECT_THAT(first.status.text, HasSubstr("raise its memory limit"));
  const StepFrame second = receiver_->receive();
  EXPECT_EQ(second.step, 6U);
  EXPECT_TRUE(second.status.ok());
  EXPECT_TRUE(torch::equal(second.value.toTensor(), torch::ones({3})));
  sent.get();
}

// Nobody reads: the check ends the wait, of who sends and of who waits for his turn.
TEST_F(StepLinkTest, WhoSendsMayBeCalledOff) {
  std::atomic<bool> is_over{false};
  const auto check = [&] {
    if (is_over) throw Aborted("called off");
  };
  const auto send = [&] {
    return thrown_by(
        [&] { sender().send({.kind = StepFrame::Kind::kValue, .value = torch::ones({8 * kMebi})}, check); });
  };
  sender();
  auto first = std::async(std::launch::async, send);
  auto second = std::async(std::launch::async, send);
  EXPECT_EQ(first.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  is_over = true;
  // One was in the middle of its frame; the other one finds the link ended, if not called off before.
  EXPECT_THAT((std::array{first.get(), second.get()}), Contains("called off"));
  EXPECT_TRUE(sender().is_closed()) << "half a frame has gone";
}

// As step_link.cc has it.
struct Head {
  uint32_t kind = 1;
  uint32_t key = 0;
  uint64_t step = 0;
  uint64_t handle = 0;
  uint32_t type = 0;
  uint32_t dtype = 0;
  uint32_t sizes = 0;
  uint32_t text = 0;
  uint64_t bytes = 0;
  std::array<uint64_t, 2> loan{};
};

TEST_F(StepLinkTest, WhatIsNoFrameIsRefused) {
  struct Case {
    Head head;
    std::vector<int64_t> numbers;
    std::string what;
  };
  constexpr uint32_t kTensor = 2;
  const int64_t large = int64_t{1} << 62;
  const Case cases[] = {
      {{.kind = 9}, {}, "its head makes no sense"},
      {{.type = 99}, {}, "its head makes no sense"},
      {{.text = 1U << 31}, {}, "its head makes no sense"},
      {{.type = kTensor, .dtype = 200}, {}, "unknown type"},
      {{.type = kTensor, .dtype = 6, .sizes = 1, .bytes = 4}, {-1}, "impossible sizes"},
      {{.type = kTensor, .dtype = 6, .sizes = 1, .bytes = 8}, {1}, "other sizes than it has bytes"},
      {{.type = kTensor, .dtype = 0, .sizes = 2, .bytes = uint64_t{1} << 63}, {large, 2}, "impossible sizes"},
      {{.type = kTensor, .dtype = 6, .sizes = 3, .bytes = 0}, {large, large, 4}, "impossible sizes"},
      {{.type = 3, .dtype = 6, .sizes = 1}, {1}, "a loan over a link without memory"},
      {{.type = 4}, {}, "a number without a value"},
      {{.type = 0, .bytes = 5}, {}, "bytes of nothing"}};
  for (const auto& each : cases) {
    const auto deadline = Deadline::after(std::chrono::seconds(30));
    auto accepted = std::async(std::launch::async, [&] { return port_.accept("hostile", deadline); });
    Connection connection = port_.connect_local(port_.local_name(), "hostile", deadline);
    StepLink receiver(accepted.get(), {.memory = &small_});
    connection.send(&each.head, sizeof(Head), deadline);
    connection.send(each.numbers.data(), each.numbers.size() * sizeof(int64_t), deadline);
    EXPECT_THAT(thrown_by([&] { receiver.receive(); }), HasSubstr(each.what)) << each.what;
  }
}

// Whatever comes, it is a frame or an exception.
TEST_F(StepLinkTest, DamagedFramesAreReadOrRefused) {
  std::mt19937 random(11);
  const auto deadline = Deadline::after(std::chrono::seconds(60));
  for (int trial = 0; trial < 300; ++trial) {
    auto accepted = std::async(std::launch::async, [&] { return port_.accept("hostile", deadline); });
    Connection connection = port_.connect_local(port_.local_name(), "hostile", deadline);
    StepLink receiver(accepted.get(), {.memory = &small_});
    Head head = {.kind = 1 + trial % 4U, .type = trial % 8U, .dtype = 6, .sizes = trial % 3U};
    if (trial % 2 == 0) head.bytes = 4;
    auto* bytes = reinterpret_cast<unsigned char*>(&head);
    for (int change = 0; change < 3; ++change)
      bytes[random() % sizeof(Head)] = static_cast<unsigned char>(random());
    connection.send(&head, sizeof(Head), deadline);
    std::array<int64_t, 64> rest{};
    for (auto& number : rest) number = random() % 4;
    connection.send(rest.data(), sizeof(rest), deadline);
    connection.end();
    EXPECT_NO_FATAL_FAILURE({
      try {
        while (true) receiver.receive();
      } catch (const Error&) {
        // As it should be: at the latest the other side has gone.
      }
    });
  }
}

}  // namespace
}  // namespace muster::detail
