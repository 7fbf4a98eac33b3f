#include "muster/ps/store_view.h"

#include <algorithm>

#include "muster/base/align.h"

namespace muster::detail {
namespace {

constexpr size_t kChunk = size_t{32} * 1024;  // elements

// Ranges share a chunk up to so many elements: a signal is then a small part of its work, and a reader that
// follows an update is still close behind it.
constexpr size_t kSharedChunk = size_t{8} * 1024;
constexpr size_t kLine = 64;
constexpr size_t kPage = 4096;

std::vector<StoreView::Range> cut(const std::vector<Slice>& slices) {
  std::vector<StoreView::Range> ranges;
  for (size_t i = 0; i < slices.size(); ++i) {
    for (size_t begin = 0; begin < slices[i].count; begin += kChunk)
      ranges.push_back({i, begin, std::min(kChunk, slices[i].count - begin), slices[i].offset + begin});
  }
  return ranges;
}

std::vector<StoreView::Chunk> join(std::span<const StoreView::Range> ranges) {
  std::vector<StoreView::Chunk> chunks;
  for (size_t begin = 0, end = 0; begin < ranges.size(); begin = end) {
    size_t count = 0;
    while (end < ranges.size() && (end == begin || count + ranges[end].count <= kSharedChunk))
      count += ranges[end++].count;
    chunks.push_back(ranges.subspan(begin, end - begin));
  }
  return chunks;
}

// Of the counters in front of the parameters.
size_t head_bytes(size_t chunks) {
  return round_up(kLine + chunks * sizeof(std::atomic<int64_t>), kPage);
}

}  // namespace

StoreView::StoreView(const Placement& placement, int server, std::byte* memory)
    : ranges_(cut(placement.slices(server))),
      chunks_(join(ranges_)),
      begun_(reinterpret_cast<std::atomic<int64_t>*>(memory)),
      announced_(begun_ + 1),
      versions_(reinterpret_cast<std::atomic<int64_t>*>(memory + kLine)),
      parameters_(reinterpret_cast<float*>(memory + head_bytes(chunks_.size()))) {}

size_t StoreView::bytes(const Placement& placement, int server) {
  return head_bytes(join(cut(placement.slices(server))).size()) + placement.extent(server) * sizeof(float);
}

}  // namespace muster::detail
