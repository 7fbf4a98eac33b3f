#include "muster/base/error.h"

#include <stdexcept>

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

TEST(TextWithoutStack, LeavesOutTheStackThatLibtorchAppends) {
  const std::runtime_error error(
      "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)\n"
      "  while in layer 7\n"
      "Exception raised from mm at Blas.cpp:12 (most recent call first):\n"
      "frame #0: c10::Error::Error(...)\n");
  EXPECT_EQ(text_without_stack(error),
            "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)\n  while in layer 7");
}

TEST(TextWithoutStack, CutsFramesWithoutAHeadToo) {
  const std::runtime_error error(
      "not enough memory: you tried to allocate 8 bytes.\n\nframe #0: <unknown>\n");
  EXPECT_EQ(text_without_stack(error), "not enough memory: you tried to allocate 8 bytes.");
}

TEST(TextWithoutStack, IsTheTypeWhereThereIsNone) {
  EXPECT_EQ(text_without_stack(std::runtime_error("")),
            "an exception without a text, of type St13runtime_error");
}

TEST(TextWithoutStack, KeepsAllOfAnotherException) {
  const std::runtime_error error("two lines\nException raised from spite");
  EXPECT_EQ(text_without_stack(error), error.what());
}

}  // namespace
}  // namespace muster::detail
