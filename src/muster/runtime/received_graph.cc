#include "muster/runtime/received_graph.h"

#include <limits>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include "muster/base/error.h"
#include "muster/graph/graph.pb.h"

namespace muster::detail {

namespace {

// The first value is the message, as bytes; then its large tensors.
Graph assemble_graph(StepValues& values, Deadline deadline) {
  google::protobuf::Arena arena;
  graph::GraphProto& proto = make_proto(arena);
  bool is_known = false;
  std::vector<at::Tensor> expected;
  std::vector<at::Tensor> tensors;
  size_t missing = 0;
  while (!is_known || missing > 0) {
    for (auto& [key, value] : values.take(/*may_wait=*/true, deadline)) {
      if (!value.isTensor() || !value.toTensor().defined())
        raise<DataLoss>("a graph came with a value that is no tensor");
      const at::Tensor& tensor = value.toTensor();
      if (!is_known) {  // a link keeps the order
        if (key != 0 || tensor.scalar_type() != at::kByte ||
            tensor.nbytes() > std::numeric_limits<int>::max() ||
            !proto.ParseFromArray(tensor.data_ptr(), static_cast<int>(tensor.nbytes())))
          raise<DataLoss>("what came as a graph is none");
        is_known = true;
        expected = empty_tensors(proto);
        tensors.resize(expected.size());
        missing = expected.size();
        continue;
      }
      const size_t index = key - size_t{1};
      if (key == 0 || index >= tensors.size() || tensors[index].defined())
        raise<DataLoss>("a graph came with a tensor that it does not have");
      if (tensor.scalar_type() != expected[index].scalar_type() ||
          !tensor.sizes().equals(expected[index].sizes()))
        raise<DataLoss>("a graph's tensor {} came with another type or other sizes", index);
      tensors[index] = tensor;
      --missing;
    }
  }
  return from_proto(proto, tensors);
}

}  // namespace

void send_graph(StepLink& link, const SavedGraph& graph, uint64_t transfer, const StepLink::Check& check) {
  const size_t bytes = graph.proto.ByteSizeLong();  // which the message remembers
  if (bytes > std::numeric_limits<int>::max())
    raise<InvalidArgument>("a graph of {} nodes does not fit into a message of 2 GiB",
                           graph.proto.nodes_size());
  at::Tensor message = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte));
  graph.proto.SerializeWithCachedSizesToArray(static_cast<uint8_t*>(message.data_ptr()));
  // With a handle, so that nobody takes it for a feed.
  const auto send = [&](uint32_t key, const at::Tensor& tensor) {
    link.send({.kind = StepFrame::Kind::kValue, .key = key, .step = transfer, .handle = 1, .value = tensor},
              check);
  };
  send(0, message);
  for (size_t i = 0; i < graph.tensors.size(); ++i) send(static_cast<uint32_t>(i + 1), graph.tensors[i]);
}

Graph receive_graph(uint64_t transfer, Rendezvous& rendezvous, Deadline deadline) {
  const auto values = rendezvous.step(transfer);
  try {
    Graph graph = assemble_graph(*values, deadline);
    rendezvous.end(transfer, /*has_failed=*/false);
    return graph;
  } catch (...) {
    rendezvous.end(transfer, /*has_failed=*/true);
    throw;
  }
}

runtime::Signature to_proto(const Signature& signature) {
  runtime::Signature proto;
  const auto add = [](const Output& output, runtime::NodeOutput* made) {
    made->set_node(static_cast<uint32_t>(output.get()->id));
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
  const auto output = [&node](const runtime::NodeOutput& each) {
    GraphNode& found = node(each.node());
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
