#include "muster/base/stream_copy.h"

#include <vector>

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(StreamCopy, CopiesAnySizeFromAnywhereToAnywhereAndNothingMore) {
  std::vector<char> source(400);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i * 7 + 1);
  for (size_t size = 0; size < 300; ++size) {
    for (const size_t shift : {0U, 1U, 16U, 63U}) {
      std::vector<char> found(400, 'x');
      std::vector<char> expected = found;
      stream_copy(found.data() + shift, source.data() + shift / 2, size);
      std::copy_n(source.begin() + static_cast<long>(shift / 2), size,
                  expected.begin() + static_cast<long>(shift));
      ASSERT_EQ(found, expected) << size << " bytes at " << shift;
    }
  }
}

}  // namespace
}  // namespace muster
