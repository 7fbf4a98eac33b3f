#include "muster/ps/store_view.h"

#include <array>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "muster/base/copy.h"

namespace muster::detail {
namespace {

// The parameters of one server, in several chunks, and one reader's session slot. The test plays the server.
class StoreViewTest : public ::testing::Test {
 protected:
  StoreViewTest()
      : layout_({{.name = "a", .shape = {100'000}}, {.name = "b", .shape = {3}}}),
        memory_(StoreView::bytes(layout_) / sizeof(Page) + 1),
        view_(layout_, reinterpret_cast<std::byte*>(memory_.data())),
        values_(layout_.bytes() / sizeof(float)) {}

  StoreView::Reader reader() {
    return {.slot = slot_, .doorbell = doorbell_, .spin_policy = SpinPolicy::of(1, 1), .check = [] {}};
  }

  void copy(const StoreView::Range& range, const std::byte* data) {
    copy_bytes(values_.data() + layout_.offset(range) / sizeof(float), data, range.count * sizeof(float));
  }

  // One update, as a server makes it: all values become the version.
  void begin(int64_t version) {
    view_.announced().exchange(version);
    view_.begun().exchange(version);
  }
  void make(size_t chunk, int64_t version) {
    for (const auto& range : layout_.ranges_of(layout_.chunks()[chunk]))
      std::fill_n(reinterpret_cast<float*>(view_.parameters() + layout_.offset(range)), range.count,
                  static_cast<float>(version));
    view_.version(chunk).exchange(version);
    wake(slot_.doorbell);
  }
  void update(int64_t version) {
    begin(version);
    for (size_t i = 0; i < layout_.chunks().size(); ++i) make(i, version);
  }

  void expect_whole(float value) {
    for (size_t slice = 0; slice < layout_.size(); ++slice) {
      const size_t begin = layout_.offset(slice) / sizeof(float);
      for (size_t i = 0; i < layout_.slices()[slice].count; ++i)
        ASSERT_EQ(values_[begin + i], value) << begin + i;
    }
  }

  struct alignas(4096) Page {
    std::array<std::byte, 4096> bytes{};
  };
  const FlatLayout layout_;
  std::vector<Page> memory_;
  StoreView view_;
  std::vector<float> values_;
  SessionSlot slot_;
  Doorbell doorbell_;
};

TEST_F(StoreViewTest, GivesTheVersionThatIsThere) {
  ASSERT_GT(layout_.chunks().size(), 3U);
  update(1);
  EXPECT_EQ(view_.read(0, reader(), [&](const auto& range, const std::byte* data) { copy(range, data); }), 1);
  expect_whole(1);
}

TEST_F(StoreViewTest, SaysWhatItReadsWhileItReads) {
  update(6);
  view_.read(6, reader(), [&](const auto&, const std::byte*) { EXPECT_EQ(slot_.reading.load(), 6 + 1); });
  EXPECT_EQ(slot_.reading.load(), 0);
}

TEST_F(StoreViewTest, CountsTheChunksThatItHasRead) {
  update(1);
  view_.read(1, reader(), [](const auto&, const std::byte*) {});
  EXPECT_EQ(slot_.chunks_read.load(), layout_.chunks().size());
}

TEST_F(StoreViewTest, AVersionThatChangesMeanwhileIsNotGiven) {
  update(1);
  size_t copied = 0;
  const auto found = view_.try_read(1, reader(), [&](const auto& range, const std::byte* data) {
    if (++copied == 2) update(2);  // a server that waits no longer for this reader
    copy(range, data);
  });
  EXPECT_EQ(found, std::nullopt);
  EXPECT_EQ(slot_.reading.load(), 0);
}

TEST_F(StoreViewTest, AVersionThatChangesMeanwhileIsReadAgainFromTheStart) {
  update(1);
  size_t copied = 0;
  const int64_t version = view_.read(1, reader(), [&](const auto& range, const std::byte* data) {
    if (++copied == 2) update(2);
    copy(range, data);
  });
  EXPECT_EQ(version, 2);
  EXPECT_EQ(copied, 2 * layout_.ranges().size());
  expect_whole(2);
}

TEST_F(StoreViewTest, FollowsAnUpdateThatIsStillBeingMade) {
  update(1);
  begin(2);
  make(0, 2);
  std::thread server;
  auto following = reader();
  following.before_waiting = [&] {
    if (server.joinable()) return;
    server = std::thread([&] {
      for (size_t i = 1; i < layout_.chunks().size(); ++i) make(i, 2);
    });
  };
  EXPECT_EQ(view_.read(1, following, [&](const auto& range, const std::byte* data) { copy(range, data); }),
            2);
  ASSERT_TRUE(server.joinable());
  server.join();
  expect_whole(2);
}

TEST_F(StoreViewTest, WhoeverComesAfterTheAnnouncementReadsTheNextVersion) {
  update(1);
  view_.announced().exchange(2);  // the server waits for readers of version 1
  int64_t reading = 0;
  std::thread server;
  auto waiting = reader();
  waiting.before_waiting = [&] {
    if (server.joinable()) return;
    reading = slot_.reading.load();
    server = std::thread([&] { update(2); });
  };
  EXPECT_EQ(view_.read(1, waiting, [&](const auto& range, const std::byte* data) { copy(range, data); }), 2);
  server.join();
  EXPECT_EQ(reading, 2 + 1);  // which a server that waits for readers of version 1 does not wait for
  expect_whole(2);
}

}  // namespace
}  // namespace muster::detail
