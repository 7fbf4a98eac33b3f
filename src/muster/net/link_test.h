#pragma once

// What the tests of links of all kinds share.

#include <algorithm>
#include <cstddef>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "muster/net/link.h"

namespace muster::detail::testing {

inline std::byte pattern(size_t i) {
  return static_cast<std::byte>(i * 7 + i / 251);
}

/// Streams `size` bytes one way in awkward sizes, two ranges of memory a call, and checks each.
inline void stream(Link& from, Link& to, size_t size) {
  std::thread sender([&] {
    std::vector<std::byte> data(size);
    for (size_t i = 0; i < size; ++i) data[i] = pattern(i);
    size_t sent = 0;
    while (sent < size) {
      const size_t first = std::min<size_t>(size - sent, 1000);
      const size_t second = std::min<size_t>(size - sent - first, 70'001);
      const iovec parts[] = {{data.data() + sent, first}, {data.data() + sent + first, second}};
      sent += from.try_send(parts);
    }
  });
  size_t received = 0;
  bool right = true;
  while (received < size) {
    std::byte a[777];
    std::vector<std::byte> b(50'000);
    const size_t first = std::min(size - received, sizeof(a));
    const iovec parts[] = {{a, first}, {b.data(), std::min(size - received - first, b.size())}};
    const size_t got = to.try_receive(parts);
    for (size_t i = 0; i < got; ++i)
      right = right && (i < first ? a[i] : b[i - first]) == pattern(received + i);
    received += got;
  }
  sender.join();
  EXPECT_TRUE(right);
}

}  // namespace muster::detail::testing
