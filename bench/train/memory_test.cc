#include "bench/train/memory.h"

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail::bench::train {
namespace {

using ::testing::Gt;

TEST(Memory, OwnIsWhatIsNoFile) {
  const auto use = parse_memory(
      "563e42a82000-7fff29266000 ---p 00000000 00:00 0    [rollup]\n"
      "Rss:                4096 kB\nPss:                2048 kB\nPss_Anon:           1024 kB\n"
      "Pss_File:            512 kB\nPss_Shmem:           512 kB\n");
  ASSERT_TRUE(use);
  EXPECT_DOUBLE_EQ(use->rss, 4);
  EXPECT_DOUBLE_EQ(use->pss, 2);
  EXPECT_DOUBLE_EQ(use->own, 1.5);
  EXPECT_EQ(parse_memory("Rss: 1 kB\n"), std::nullopt);
}

TEST(Memory, OfThisProcessIsThere) {
  const auto use = memory_of({getpid()});
  ASSERT_TRUE(use);
  EXPECT_GE(use->rss, use->pss);
  EXPECT_GE(use->pss, use->own);
  EXPECT_THAT(use->own, Gt(0));
}

}  // namespace
}  // namespace muster::detail::bench::train
