#pragma once

// Derivatives as nodes, for those who build graphs in this room. Pure functions of the graph.

#include <set>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "muster/graph/graph_node.h"

namespace muster::detail {

/// Nodes, and nodes whose outputs they take: ways that derivatives do not go.
using LeftOut = std::set<std::pair<const GraphNode*, const GraphNode*>>;

/// As gradients() of muster/graph.h, but undefined outputs where no way leads to an `x`.
std::vector<Output> gradients_or_none(const std::vector<Output>& y, const std::vector<Output>& x,
                                      const std::vector<Output>& y_gradients, std::source_location where,
                                      const LeftOut& left_out = {});

/// The derivative of one node alone by some of what it takes: `gradients` are those of its outputs, undefined
/// for outputs that have none.
std::vector<Output> node_gradients(GraphNode& node, const std::vector<Output>& gradients,
                                   const std::vector<Output>& inputs, std::source_location where);

/// The trainable variables that a loss depends on by ways that can be differentiated. Throws InvalidArgument
/// where there are none; `subject` begins the message.
std::vector<Output> variables_behind(const Output& loss, const std::string& subject);

/// Throws InvalidArgument for what is no variable, and for one of a type that update rules do not take.
void check_updated(const Output& variable, const std::string& subject);

/// Whether it may be a tensor that has a gradient.
bool may_have_gradient(const Output& output);

}  // namespace muster::detail
