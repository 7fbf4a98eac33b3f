#include "muster/runtime/received_graph.h"

#include <utility>
#include <vector>

#include "muster/base/error.h"

namespace muster::detail {

void send_tensors(StepLink& link, const SavedGraph& graph, uint64_t transfer) {
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    // With a handle, so that nobody takes it for a feed.
    link.send({.kind = StepFrame::Kind::kValue,
               .key = static_cast<uint32_t>(i),
               .step = transfer,
               .handle = 1,
               .value = graph.tensors[i]});
  }
}

Graph receive_graph(const graph::GraphProto& proto, uint64_t transfer, Rendezvous& rendezvous,
                    Deadline deadline) {
  const std::vector<at::Tensor> expected = empty_tensors(proto);
  std::vector<at::Tensor> tensors(expected.size());
  size_t missing = expected.size();
  if (missing > 0) {
    const auto values = rendezvous.step(transfer);
    while (missing > 0) {
      for (auto& [key, value] : values->take(/*may_wait=*/true, deadline)) {
        if (key >= tensors.size() || !value.isTensor() || tensors[key].defined())
          raise<DataLoss>("a graph came with a tensor that it does not have");
        const at::Tensor& tensor = value.toTensor();
        if (!tensor.defined() || tensor.scalar_type() != expected[key].scalar_type() ||
            !tensor.sizes().equals(expected[key].sizes()))
          raise<DataLoss>("a graph's tensor {} came with another type or other sizes", key);
        tensors[key] = tensor;
        --missing;
      }
    }
    rendezvous.end(transfer, /*has_failed=*/false);
  }
  return from_proto(proto, tensors);
}

runtime::Signature to_proto(const Signature& signature) {
  runtime::Signature proto;
  const auto add = [](const Output& output, graph::OutputProto* made) {
    made->set_node(static_cast<uint32_t>(output.get()->id) + 1);
    made->set_index(static_cast<uint32_t>(output.index()));
  };
  for (const auto& feed : signature.feeds) add(feed, proto.add_feeds());
  for (const auto& fetch : signature.fetches) add(fetch, proto.add_fetches());
  for (const auto& target : signature.targets) proto.add_targets(static_cast<uint32_t>(target.get()->id));
  return proto;
}

Signature signature_of(const runtime::Signature& proto, const Graph& graph) {
  auto& nodes = graph.data().nodes;
  const auto node = [&nodes](uint32_t id) -> GraphNode& {
    if (id >= nodes.size()) raise<InvalidArgument>("the graph has no node {}", id);
    return nodes[id];
  };
  const auto output = [&node](const graph::OutputProto& each) {
    if (each.node() == 0) raise<InvalidArgument>("a feed or a fetch is undefined");
    GraphNode& found = node(each.node() - 1);
    if (each.index() >= found.outputs.size())
      raise<InvalidArgument>("'{}' has no output {}", found.name, each.index());
    return Output(&found, static_cast<int>(each.index()));
  };
  Signature signature;
  for (const auto& each : proto.feeds()) signature.feeds.push_back(output(each));
  for (const auto& each : proto.fetches()) signature.fetches.push_back(output(each));
  for (const uint32_t each : proto.targets()) signature.targets.emplace_back(&node(each));
  return signature;
}

}  // namespace muster::detail
