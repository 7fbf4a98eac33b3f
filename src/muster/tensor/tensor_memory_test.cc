#include "muster/tensor/tensor_memory.h"

#include <cstdlib>
#include <thread>

#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/error.h"

namespace muster::detail {
namespace {

constexpr int64_t kMegabyte = 1 << 20;

// Memory that counts what it gives.
struct Source {
  TensorMemory::Source function() {
    return [this](size_t bytes) {
      ++taken;
      live += bytes;
      void* memory = std::aligned_alloc(4096, bytes);
      begin = static_cast<const char*>(memory);
      size = bytes;
      return std::shared_ptr<void>(memory, [this, bytes](void* it) {
        live -= bytes;
        std::free(it);
      });
    };
  }
  /// Whether the tensor lies in what was given last.
  bool has(const torch::Tensor& tensor) const {
    const auto* data = static_cast<const char*>(tensor.data_ptr());
    return data >= begin && data + tensor.nbytes() <= begin + size;
  }

  int taken = 0;
  size_t live = 0;
  const char* begin = nullptr;
  size_t size = 0;
};

torch::Tensor bytes(int64_t count) {
  return torch::empty({count}, torch::kInt8);
}

TEST(TensorMemory, ATensorMadeInAScopeComesFromTheSource) {
  Source source;
  TensorMemory memory(source.function());
  {
    const TensorMemory::Scope scope(memory);
    const auto tensor = torch::full({1000, 10}, 2.0F);
    EXPECT_EQ(source.taken, 1);
    EXPECT_TRUE(source.has(tensor));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64, 0U);
    EXPECT_FLOAT_EQ(tensor.sum().item<float>(), 20'000);
    EXPECT_EQ(memory.held(), source.live);
  }
  EXPECT_EQ(source.taken, 1);
}

TEST(TensorMemory, WithoutAScopeAndForSmallTensorsNothingChanges) {
  Source source;
  TensorMemory memory(source.function());
  {
    const TensorMemory::Scope scope(memory);
    EXPECT_FLOAT_EQ(torch::ones({10}).sum().item<float>(), 10);
    std::thread([] { EXPECT_FLOAT_EQ(torch::ones({10'000}).sum().item<float>(), 10'000); }).join();
  }
  EXPECT_FLOAT_EQ(torch::ones({10'000}).sum().item<float>(), 10'000);
  EXPECT_EQ(source.taken, 0);
  EXPECT_EQ(memory.held(), 0U);
}

TEST(TensorMemory, ScopesNest) {
  Source outer;
  Source inner;
  TensorMemory first(outer.function());
  TensorMemory second(inner.function());
  const TensorMemory::Scope scope(first);
  {
    const TensorMemory::Scope nested(second);
    EXPECT_TRUE(inner.has(bytes(kMegabyte)));
  }
  EXPECT_TRUE(outer.has(bytes(kMegabyte)));
}

TEST(TensorMemory, WhatIsFreedIsUsedAgain) {
  Source source;
  TensorMemory memory(source.function());
  const TensorMemory::Scope scope(memory);
  const void* place = bytes(kMegabyte).data_ptr();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(bytes(kMegabyte - 100 * i).data_ptr(), place);
  EXPECT_EQ(source.taken, 1);
  const auto one = bytes(kMegabyte);
  const auto other = bytes(kMegabyte);
  EXPECT_EQ(source.taken, 2);
  EXPECT_NE(one.data_ptr(), other.data_ptr());
  bytes(kMegabyte / 2);  // a block twice as large would be a waste
  EXPECT_EQ(source.taken, 3);
}

TEST(TensorMemory, ATensorMayOutliveItAndBeFreedByAnotherThread) {
  Source source;
  torch::Tensor tensor;
  {
    TensorMemory memory(source.function());
    const TensorMemory::Scope scope(memory);
    tensor = torch::full({kMegabyte}, 3.0F);
  }
  EXPECT_GT(source.live, 0U);
  EXPECT_FLOAT_EQ(tensor[kMegabyte - 1].item<float>(), 3);
  std::thread([it = std::move(tensor)]() mutable { it.reset(); }).join();
  EXPECT_EQ(source.live, 0U);
}

TEST(TensorMemory, WhatAnotherThreadFreesIsUsedAgain) {
  Source source;
  TensorMemory memory(source.function());
  const TensorMemory::Scope scope(memory);
  auto tensor = bytes(kMegabyte);
  const void* place = tensor.data_ptr();
  std::thread([it = std::move(tensor)]() mutable { it.reset(); }).join();
  EXPECT_EQ(bytes(kMegabyte).data_ptr(), place);
}

TEST(TensorMemory, ATensorMayGrowAndShrinkInPlace) {
  Source source;
  TensorMemory memory(source.function());
  const TensorMemory::Scope scope(memory);
  auto tensor = torch::ones({2000});
  tensor.resize_({500'000});
  tensor.fill_(1);
  EXPECT_TRUE(source.has(tensor));
  EXPECT_FLOAT_EQ(tensor.sum().item<float>(), 500'000);
}

TEST(TensorMemory, AScratchBlockIsFreedByItsAddress) {
  Source source;
  TensorMemory memory(source.function());
  const TensorMemory::Scope scope(memory);
  auto* allocator = c10::GetCPUAllocator();
  void* ours = allocator->raw_allocate(kMegabyte);
  void* small = allocator->raw_allocate(100);
  EXPECT_EQ(source.taken, 1);
  allocator->raw_deallocate(small);
  allocator->raw_deallocate(ours);
  EXPECT_EQ(bytes(kMegabyte).data_ptr(), ours);
}

TEST(TensorMemory, WhatIsNoLongerUsedIsGivenBackWhenItIsMoreThanIsUsed) {
  Source source;
  TensorMemory memory(source.function());
  const TensorMemory::Scope scope(memory);
  for (int64_t i = 0; i < 3; ++i) bytes((20 + 5 * i) * kMegabyte);  // each too large for the block before
  EXPECT_EQ(source.taken, 3);
  EXPECT_GE(source.live, static_cast<size_t>(75 * kMegabyte))
      << "64 MB are kept, and what was asked for last";
  const auto used = bytes(kMegabyte);
  EXPECT_LE(source.live, static_cast<size_t>(2 * kMegabyte));
  EXPECT_EQ(memory.held(), source.live);
}

TEST(TensorMemory, ALimitIsKeptAndNamed) {
  Source source;
  TensorMemory memory(source.function(), static_cast<size_t>(3 * kMegabyte));
  const TensorMemory::Scope scope(memory);
  { const auto large = bytes(2 * kMegabyte); }
  const auto first = bytes(5 * kMegabyte / 4);
  const auto second = bytes(5 * kMegabyte / 4);
  EXPECT_LE(source.live, static_cast<size_t>(3 * kMegabyte))
      << "what is kept goes before anything is refused";
  try {
    bytes(kMegabyte);
    FAIL() << "it fitted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("raise its memory limit"));
  }
  EXPECT_THROW(bytes(4 * kMegabyte), InvalidArgument);
}

}  // namespace
}  // namespace muster::detail
