#include "muster/collective/native/memory_link.h"

#include <memory>

#include <gtest/gtest.h>

#include "muster/net/link_test.h"

namespace muster::detail {
namespace {

using testing::stream;

TEST(MemoryLink, CarriesBytesInOrderAroundItsPipe) {
  const auto a = std::make_unique<MemoryPipe>();
  const auto b = std::make_unique<MemoryPipe>();
  Doorbell doorbells[2];
  MemoryLink left(
      a.get(), [&] { return b.get(); }, &doorbells[1]);
  MemoryLink right(
      b.get(), [&] { return a.get(); }, &doorbells[0]);
  stream(left, right, 3'000'001);
  stream(right, left, 1'000'003);
}

}  // namespace
}  // namespace muster::detail
