#include "muster/ps/store_view.h"

#include "muster/base/align.h"

namespace muster::detail {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kPage = 4096;

// Of the counters in front of the parameters.
size_t head_bytes(const FlatLayout& layout) {
  return round_up(kLine + layout.chunks().size() * sizeof(std::atomic<int64_t>), kPage);
}

}  // namespace

StoreView::StoreView(const FlatLayout& layout, std::byte* memory)
    : layout_(layout),
      begun_(reinterpret_cast<std::atomic<int64_t>*>(memory)),
      announced_(begun_ + 1),
      versions_(reinterpret_cast<std::atomic<int64_t>*>(memory + kLine)),
      parameters_(memory + head_bytes(layout)) {}

size_t StoreView::bytes(const FlatLayout& layout) {
  return head_bytes(layout) + layout.bytes();
}

}  // namespace muster::detail
