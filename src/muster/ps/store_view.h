#pragma once

// The parameters of one server as its workers see them, in memory that they map read-only.
//
// A version is one state of all parameters of the server. The server changes them in place, chunk by chunk,
// and says how far it is: a worker that wants the new version copies behind it, while it is still being made.
// The server announces the next update first, so that whoever comes reads that one, and waits for those who
// read an older one as long as they get on. It does not wait for ever: a worker that was stopped in the
// middle finds that its version has been changed, and reads again.
//
// Of the server one thread writes and announces; each worker reads with one thread at a time. Reading blocks
// until the version is there, and throws what the reader's check throws. The memory outlives it.
//
//   // Gives the version that it read: 7, or a later one.
//   view.read(7, reader, [&](const StoreView::Range& range, const std::byte* data) { ... });

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <optional>

#include "muster/optim/flat_layout.h"
#include "muster/ps/session_slot.h"

namespace muster::detail {

class StoreView {
 public:
  using Range = FlatLayout::Range;

  /// Over memory of `bytes(layout)`, zeroed at first; the layout outlives this. A chunk of the layout is what
  /// one thread updates, and a reader waits for, at a time.
  StoreView(const FlatLayout& layout, std::byte* memory);
  StoreView(const StoreView&) = delete;
  StoreView& operator=(const StoreView&) = delete;
  static size_t bytes(const FlatLayout& layout);

  const FlatLayout& layout() const { return layout_; }
  std::byte* parameters() const { return parameters_; }

  /// The version that is there, or is being made or is next; that is there or being made; and that of a
  /// chunk.
  std::atomic<int64_t>& announced() const { return *announced_; }
  std::atomic<int64_t>& begun() const { return *begun_; }
  std::atomic<int64_t>& version(size_t chunk) const { return versions_[chunk]; }

  /// Who reads, and how it waits.
  struct Reader {
    SessionSlot& slot;
    Doorbell& doorbell;
    SpinPolicy spin_policy;
    std::function<void()> check;                ///< called now and then while waiting; may throw
    std::function<void()> before_waiting = {};  ///< called when the next chunk is not there yet
  };

  /// Gives one whole version, not below `at_least`, to `copy`, range by range; once more from the start when
  /// it changed meanwhile. Returns the version.
  template <typename Copy>
  int64_t read(int64_t at_least, const Reader& reader, const Copy& copy) const {
    for (;;) {
      if (const auto version_read = try_read(at_least, reader, copy)) return *version_read;
      reader.check();
    }
  }

  /// The same, once; empty when it changed meanwhile.
  template <typename Copy>
  std::optional<int64_t> try_read(int64_t at_least, const Reader& reader, const Copy& copy) const {
    wait_until(
        reader.slot.doorbell, reader.spin_policy, [&] { return announced_->load() >= at_least; },
        reader.check);
    const Hold hold(*this, reader);
    const int64_t version_read = hold.version;
    for (size_t i = 0; i < layout_.chunks().size(); ++i) {
      const auto is_there = [&] { return versions_[i].load() >= version_read; };
      if (!is_there()) {
        if (reader.before_waiting) reader.before_waiting();
        wait_until(reader.slot.doorbell, following(reader.spin_policy), is_there, reader.check);
      }
      for (const Range& range : layout_.ranges_of(layout_.chunks()[i]))
        copy(range, parameters_ + layout_.offset(range));
      reader.slot.chunks_read.fetch_add(1, std::memory_order_relaxed);
    }
    reader.slot.reading.exchange(version_read + 1);  // nothing that was copied is read behind it
    return begun_->load() == version_read ? std::optional(version_read) : std::nullopt;
  }

 private:
  // Who follows an update soon gives its core away: a thread that works on the update may need it.
  static SpinPolicy following(SpinPolicy spin_policy) {
    constexpr int kMostSpins = 100;
    return {.spins = std::min(spin_policy.spins, kMostSpins), .yields = spin_policy.yields};
  }

  // While it lives, the server waits for this reader before it changes the version.
  struct Hold {
    Hold(const StoreView& view, const Reader& who) : reader(who) {
      do {
        version = view.announced_->load();
        reader.slot.reading.exchange(version + 1);
      } while (view.announced_->load() != version);
    }
    ~Hold() {
      reader.slot.reading.exchange(0);
      wake(reader.doorbell);
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

    const Reader& reader;
    int64_t version = 0;
  };

  const FlatLayout& layout_;
  std::atomic<int64_t>* begun_ = nullptr;
  std::atomic<int64_t>* announced_ = nullptr;
  std::atomic<int64_t>* versions_ = nullptr;
  std::byte* parameters_ = nullptr;
};

}  // namespace muster::detail
