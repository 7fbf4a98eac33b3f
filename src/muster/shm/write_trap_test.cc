#include "muster/shm/write_trap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <csignal>

#include <gtest/gtest.h>

#include "muster/base/descriptor.h"

namespace muster::detail {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kBytes = 4 * kPage;

// A file in memory, as its owner sees it and as somebody who may only read it does.
class WriteTrapTest : public ::testing::Test {
 protected:
  WriteTrapTest() {
    EXPECT_EQ(ftruncate(file_.get(), kBytes), 0);
    ours_ =
        static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0));
    theirs_ = static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE, file_.get(), 0));
    EXPECT_NE(ours_, MAP_FAILED);
    EXPECT_NE(theirs_, MAP_FAILED);
  }
  ~WriteTrapTest() override {
    munmap(ours_, kBytes);
    munmap(theirs_, kBytes);
  }
  void write(size_t at, char value) { static_cast<volatile std::byte*>(theirs_)[at] = std::byte(value); }
  char read(size_t at) const {
    return static_cast<char>(static_cast<const volatile std::byte*>(theirs_)[at]);
  }

  Descriptor file_{memfd_create("write-trap-test", MFD_CLOEXEC)};
  std::byte* ours_ = nullptr;
  std::byte* theirs_ = nullptr;
};

TEST_F(WriteTrapTest, WhatTheOwnerWritesIsSeenAndCountsAsNobodysWrite) {
  const WriteTrap trap(theirs_, kBytes);
  EXPECT_EQ(read(5), 0);
  ours_[5] = std::byte('x');
  EXPECT_EQ(read(5), 'x');
  EXPECT_EQ(trap.first_write(), nullptr);
}

TEST_F(WriteTrapTest, TellsWhereTheFirstWriteWasAndKeepsItFromTheOwner) {
  const WriteTrap trap(theirs_, kBytes);
  write(2 * kPage + 7, 'a');
  write(3, 'b');
  EXPECT_EQ(trap.first_write(), theirs_ + 2 * kPage + 7);
  EXPECT_EQ(read(3), 'b');
  EXPECT_EQ(ours_[3], std::byte(0));
  EXPECT_EQ(ours_[2 * kPage + 7], std::byte(0));
}

TEST_F(WriteTrapTest, SeveralAreToldApart) {
  const WriteTrap first(theirs_, kPage);
  const WriteTrap second(theirs_ + kPage, kPage);
  write(kPage, 'a');
  EXPECT_EQ(first.first_write(), nullptr);
  EXPECT_EQ(second.first_write(), theirs_ + kPage);
  const WriteTrap third(theirs_ + 2 * kPage, kPage);
  EXPECT_EQ(third.first_write(), nullptr);
}

using WriteTrapDeathTest = WriteTrapTest;

TEST_F(WriteTrapDeathTest, OtherFaultsEndTheProcessAsBefore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        signal(SIGSEGV, SIG_DFL);
        { const WriteTrap trap(theirs_, kPage); }
        write(0, 'a');  // the trap is gone
      },
      ::testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(
      {
        signal(SIGSEGV, SIG_DFL);
        const WriteTrap trap(theirs_, kPage);
        ::raise(SIGSEGV);
      },
      ::testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace muster::detail
