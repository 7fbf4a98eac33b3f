#pragma once

// Graphs as protobuf messages, and back. Tensors of more than kLargeTensor bytes stay outside of the message,
// which can't be larger than 2 GB: in the order in which the message names them.
//
// What is read may come from anybody: everything that Graph's own functions would refuse is refused, with the
// node's name. from_proto() throws InvalidArgument for a graph that makes no sense, DataLoss for tensors that
// are missing or of another size than was said.

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <google/protobuf/arena.h>

#include "muster/graph.h"
#include "muster/graph/graph.pb.h"

namespace muster::detail {

constexpr size_t kLargeTensor = 4096;

/// An empty message, in the memory of `arena`, which lives longer: a graph has many small parts, and so comes
/// and goes several times as fast.
graph::GraphProto& make_proto(google::protobuf::Arena& arena);

struct SavedGraph {
  std::unique_ptr<google::protobuf::Arena> arena = std::make_unique<google::protobuf::Arena>();
  graph::GraphProto& proto = make_proto(*arena);
  std::vector<at::Tensor> tensors;  ///< the large ones, contiguous
};

SavedGraph to_proto(const Graph& graph);

/// The tensors are not copied. `depth` says how many graphs this one is inside of (graph_body.h).
Graph from_proto(const graph::GraphProto& proto, const std::vector<at::Tensor>& tensors, int depth = 0);

/// The name that a type of tensors has in a message: "float32".
std::string dtype_name(at::ScalarType type);

/// What is known of the outside tensors before they are there, in their order: to receive them into.
std::vector<at::Tensor> empty_tensors(const graph::GraphProto& proto);

}  // namespace muster::detail
