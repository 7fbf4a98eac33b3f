#pragma once

// Derivatives as nodes, for those who build graphs in this room. Pure functions of the graph.

#include <source_location>
#include <vector>

#include "muster/graph/graph_node.h"

namespace muster::detail {

/// As gradients() of muster/graph.h, but undefined outputs where no way leads to an `x`.
std::vector<Output> gradients_or_none(const std::vector<Output>& y, const std::vector<Output>& x,
                                      const std::vector<Output>& y_gradients, std::source_location where);

/// The derivative of one node alone by some of what it takes: `gradients` are those of its outputs, undefined
/// for outputs that have none.
std::vector<Output> node_gradients(GraphNode& node, const std::vector<Output>& gradients,
                                   const std::vector<Output>& inputs, std::source_location where);

/// The trainable variables that an output depends on by ways that can be differentiated.
std::vector<Output> variables_behind(const Output& loss);

/// Whether it may be a tensor that has a gradient.
bool may_have_gradient(const Output& output);

}  // namespace muster::detail
