#include "muster/runtime/part_times.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <ostream>

#include <ATen/ops/empty.h>

#include "muster/base/error.h"
#include "muster/base/replace_file.h"
#include "muster/observe/chrome_trace.h"

namespace muster {

void Timeline::save(const std::string& file) const {
  std::vector<detail::ChromeSpan> drawn;
  drawn.reserve(spans.size());
  for (const auto& span : spans)
    drawn.push_back({.process = span.task,
                     .name = span.node.empty() ? span.op : span.node,
                     .category = span.op,
                     .start = span.start,
                     .duration = span.duration});
  detail::replace_file(file, [&drawn](std::ostream& out) { detail::write_chrome_trace(out, drawn); });
}

namespace detail {

namespace {

constexpr size_t kMostBytes = std::numeric_limits<int>::max();  // of a message

}  // namespace

runtime::PartTimes to_proto(const Program& program, const std::vector<NodeTime>& times) {
  runtime::PartTimes proto;
  for (const auto& time : times) {
    auto& span = *proto.add_spans();
    if (time.node != NodeTime::kWaiting) {
      const NodeLabel& label = program.nodes[time.node];
      span.set_node(label.name);
      span.set_op(label.op);
    }
    span.set_start_ns(time.start_ns);
    span.set_duration_ns(time.duration_ns);
  }
  return proto;
}

at::Tensor pack_times(const runtime::PartTimes& times) {
  const std::string text = times.SerializeAsString();
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::TensorOptions(at::kByte));
  std::copy(text.begin(), text.end(), static_cast<char*>(bytes.data_ptr()));
  return bytes;
}

runtime::PartTimes unpack_times(const at::Tensor& bytes) {
  runtime::PartTimes times;
  if (bytes.scalar_type() != at::kByte || !bytes.is_contiguous() || bytes.nbytes() > kMostBytes ||
      !times.ParseFromArray(bytes.data_ptr(), static_cast<int>(bytes.nbytes())))
    throw DataLoss("when a task did what was damaged on its way");
  return times;
}

void add_spans(Timeline& timeline, const std::string& task, const runtime::PartTimes& times) {
  for (const auto& span : times.spans())
    timeline.spans.push_back({.task = task,
                              .node = span.node(),
                              .op = span.op().empty() ? "wait" : span.op(),
                              .start = std::chrono::nanoseconds(span.start_ns()),
                              .duration = std::chrono::nanoseconds(span.duration_ns())});
}

void put_in_order(Timeline& timeline) {
  auto& spans = timeline.spans;
  std::stable_sort(spans.begin(), spans.end(),
                   [](const auto& one, const auto& other) { return one.start < other.start; });
  if (spans.empty()) return;
  const auto begin = spans.front().start;
  for (auto& span : spans) span.start -= begin;
}

}  // namespace detail
}  // namespace muster
