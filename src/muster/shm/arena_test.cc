#include "muster/shm/arena.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kMegabyte = 1 << 20;

TEST(Arena, GivesAlignedMemoryThatIsItsOwn) {
  const auto arena = Arena::create(kMegabyte);
  auto* small = static_cast<std::byte*>(arena->allocate(10));
  auto* page = static_cast<std::byte*>(arena->allocate(4096));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small) % 64, 0U);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(page) % 4096, 0U);
  EXPECT_TRUE(arena->contains(page, 4096));
  EXPECT_FALSE(arena->contains(page, kMegabyte));
  EXPECT_GT(arena->offset_of(small), 0U);
  EXPECT_EQ(arena->at(arena->offset_of(page)), page);
  int elsewhere = 0;
  EXPECT_FALSE(arena->contains(&elsewhere, sizeof(elsewhere)));
}

TEST(Arena, WhatIsFreedCanBeHadAgain) {
  const auto arena = Arena::create(kMegabyte);
  for (int round = 0; round < 100; ++round) {
    std::vector<void*> allocations;
    for (const size_t size : {100, 5000, 64, 300'000, 1, 400'000})
      allocations.push_back(arena->allocate(size));
    for (const int i : {3, 0, 5, 1, 4, 2}) arena->free(allocations[static_cast<size_t>(i)]);
    EXPECT_EQ(arena->allocated(), 0U);
  }
  EXPECT_NO_THROW(arena->free(arena->allocate(kMegabyte - 4096)));
}

TEST(Arena, AFullOneSaysSo) {
  const auto arena = Arena::create(kMegabyte);
  arena->allocate(kMegabyte / 2);
  try {
    arena->allocate(kMegabyte);
    FAIL();
  } catch (const SystemError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("the arena is full"), HasSubstr("1 MiB wanted"),
                                    HasSubstr("512 KiB of 1 MiB")));
  }
  EXPECT_NO_THROW(arena->allocate(1000)) << "the failure took nothing";
}

TEST(Arena, AnotherProcessSeesTheSameMemory) {
  const auto arena = Arena::create(kMegabyte);
  auto* data = static_cast<char*>(arena->allocate(100));
  const pid_t child = fork();
  if (child == 0) {
    strcpy(data, "from the child");
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_STREQ(data, "from the child");
}

TEST(Arena, OpenedInTheSameProcessItIsTheSameMapping) {
  const auto arena = Arena::create(kMegabyte);
  const auto same = Arena::open(dup(arena->fd()));
  EXPECT_EQ(same.get(), arena.get());
}

TEST(Arena, LeavesNoFileAndNoDescriptor) {
  const auto count = [](const char* folder) {
    int entries = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++entries;
    return entries;
  };
  const int descriptors = count("/proc/self/fd");
  const int files = count("/dev/shm");
  {
    const auto arena = Arena::create(kMegabyte);
    arena->allocate(kMegabyte / 2);
    EXPECT_EQ(count("/dev/shm"), files);
  }
  EXPECT_EQ(count("/proc/self/fd"), descriptors);
}

}  // namespace
}  // namespace muster::detail
