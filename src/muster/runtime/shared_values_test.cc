#include "muster/runtime/shared_values.h"

#include <future>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/error.h"
#include "muster/net/endpoint.h"

namespace muster::detail {
namespace {

constexpr int64_t kLarge = 100'000;

// Two tasks of one host, with a connection between them.
class SharedValuesTest : public ::testing::Test {
 protected:
  SharedValuesTest() {
    const auto deadline = Deadline::after(std::chrono::seconds(30));
    auto accepted = std::async(std::launch::async, [&] {
      Connection connection = receiving_port_.accept("test", deadline);
      auto shared = SharedValues::exchange(connection, receiving_memory_, deadline);
      return std::pair(std::move(connection), std::move(shared));
    });
    sending_connection_ = sending_port_.connect_local(receiving_port_.local_name(), "test", deadline);
    sender_ = SharedValues::exchange(sending_connection_, sending_memory_, deadline);
    std::tie(receiving_connection_, receiver_) = accepted.get();
  }

  torch::Tensor made_by_sender() {
    const TensorMemory::Scope scope(sending_memory_.tensors());
    return torch::arange(kLarge, torch::kFloat);
  }

  Endpoint sending_port_{{.secret = "test"}};
  Endpoint receiving_port_{{.secret = "test"}};
  TaskMemory sending_memory_;
  TaskMemory receiving_memory_;
  Connection sending_connection_;
  Connection receiving_connection_;
  std::shared_ptr<SharedValues> sender_;
  std::shared_ptr<SharedValues> receiver_;
};

TEST_F(SharedValuesTest, ATensorIsReadWhereItLies) {
  const torch::Tensor tensor = made_by_sender();
  const auto loan = sender_->lend(tensor);
  ASSERT_TRUE(loan);
  const torch::Tensor borrowed = receiver_->borrow(*loan, {kLarge / 10, 10}, torch::kFloat);
  EXPECT_EQ(borrowed.data_ptr(), tensor.data_ptr()) << "one process maps an arena once";
  EXPECT_TRUE(borrowed.equal(tensor.view({kLarge / 10, 10})));
  EXPECT_TRUE(SharedValues::is_borrowed(borrowed));
  EXPECT_FALSE(SharedValues::is_borrowed(tensor));
}

TEST_F(SharedValuesTest, ItIsKeptUntilTheLastCopyOfItIsGone) {
  torch::Tensor tensor = made_by_sender();
  EXPECT_EQ(tensor.storage().use_count(), 1U);
  const auto loan = sender_->lend(tensor);
  ASSERT_TRUE(loan);
  torch::Tensor borrowed = receiver_->borrow(*loan, {kLarge}, torch::kFloat);
  torch::Tensor part = borrowed.slice(0, 10, 20);
  borrowed.reset();
  sender_->take_back();
  EXPECT_EQ(tensor.storage().use_count(), 2U);
  std::thread([it = std::move(part)]() mutable { it.reset(); }).join();
  sender_->take_back();
  EXPECT_EQ(tensor.storage().use_count(), 1U);
}

TEST_F(SharedValuesTest, WhatLiesElsewhereIsCopiedOnce) {
  const torch::Tensor tensor = torch::arange(kLarge, torch::kFloat);
  const auto loan = sender_->lend(tensor);
  ASSERT_TRUE(loan);
  const torch::Tensor borrowed = receiver_->borrow(*loan, {kLarge}, torch::kFloat);
  EXPECT_NE(borrowed.data_ptr(), tensor.data_ptr());
  EXPECT_TRUE(borrowed.equal(tensor));
}

TEST_F(SharedValuesTest, WhatIsSmallIsNotLent) {
  EXPECT_FALSE(sender_->lend(torch::ones({100})));
  EXPECT_FALSE(sender_->lend(torch::ones({0})));
}

TEST_F(SharedValuesTest, SlotsAreUsedAgainAndMayRunOut) {
  const torch::Tensor tensor = made_by_sender();
  for (int round = 0; round < 3; ++round) {
    std::vector<torch::Tensor> borrowed;
    while (const auto loan = sender_->lend(tensor))
      borrowed.push_back(receiver_->borrow(*loan, {kLarge}, torch::kFloat));
    EXPECT_EQ(borrowed.size(), 4096U);
    borrowed.pop_back();
    const auto loan = sender_->lend(tensor);
    ASSERT_TRUE(loan) << "one was given back";
    borrowed.push_back(receiver_->borrow(*loan, {kLarge}, torch::kFloat));
    EXPECT_FALSE(sender_->lend(tensor));
  }
  sender_->take_back();
  EXPECT_EQ(tensor.storage().use_count(), 1U);
}

TEST_F(SharedValuesTest, ALoanOutsideOfTheMemoryIsRefused) {
  const auto loan = sender_->lend(made_by_sender());
  ASSERT_TRUE(loan);
  Loan wrong = *loan;
  wrong.offset = sending_memory_.arena()->capacity() - 64;
  EXPECT_THROW(receiver_->borrow(wrong, {kLarge}, torch::kFloat), InvalidArgument);
  wrong = *loan;
  wrong.offset += 4;
  EXPECT_THROW(receiver_->borrow(wrong, {kLarge}, torch::kFloat), InvalidArgument);
  wrong = *loan;
  wrong.slot = 1 << 20;
  EXPECT_THROW(receiver_->borrow(wrong, {kLarge}, torch::kFloat), InvalidArgument);
}

TEST_F(SharedValuesTest, WhoEndsTheConnectionLeavesTheMemoryToTheReader) {
  torch::Tensor borrowed;
  {
    const auto loan = sender_->lend(made_by_sender());
    ASSERT_TRUE(loan);
    borrowed = receiver_->borrow(*loan, {kLarge}, torch::kFloat);
  }
  sender_->end();
  sender_.reset();
  sending_memory_.take_back();
  const torch::Tensor other = made_by_sender().fill_(7);
  EXPECT_TRUE(borrowed.equal(torch::arange(kLarge, torch::kFloat)));
}

TEST_F(SharedValuesTest, WhatIsGivenBackAfterTheEndOfTheConnectionIsFree) {
  const torch::Tensor tensor = made_by_sender();
  const auto loan = sender_->lend(tensor);
  ASSERT_TRUE(loan);
  torch::Tensor borrowed = receiver_->borrow(*loan, {kLarge}, torch::kFloat);
  sender_->end();
  sender_.reset();
  sending_memory_.take_back();
  EXPECT_EQ(tensor.storage().use_count(), 2U);
  borrowed.reset();
  sending_memory_.take_back();
  EXPECT_EQ(tensor.storage().use_count(), 1U);
}

TEST_F(SharedValuesTest, ALoanThatWasNotSaidIsForgotten) {
  const torch::Tensor tensor = made_by_sender();
  const auto loan = sender_->lend(tensor);
  ASSERT_TRUE(loan);
  sender_->forget(*loan);
  EXPECT_EQ(tensor.storage().use_count(), 1U);
  const auto next = sender_->lend(tensor);
  ASSERT_TRUE(next);
  sender_->forget(*loan);
  EXPECT_EQ(tensor.storage().use_count(), 2U) << "the slot is another loan's now";
}

TEST_F(SharedValuesTest, WhenTheReaderHasGoneTheMemoryIsFree) {
  const torch::Tensor tensor = made_by_sender();
  ASSERT_TRUE(sender_->lend(tensor));
  EXPECT_EQ(tensor.storage().use_count(), 2U);
  receiver_.reset();
  sender_.reset();
  EXPECT_EQ(tensor.storage().use_count(), 1U);
}

}  // namespace
}  // namespace muster::detail
