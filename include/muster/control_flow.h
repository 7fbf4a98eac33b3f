#pragma once

// Branches and loops that depend on data, in graphs (graph.h), as tf.cond and tf.while_loop were.
//
//   muster::Output y = muster::cond(
//       muster::ops::gt(x, 0.0), [&] { return std::vector{muster::ops::mul(x, x)}; },
//       [&] { return std::vector{muster::ops::neg(x)}; }).front();
//
// The functions are called once, when the node is made, and say which nodes a branch consists of; what they
// take from outside is computed before. Only the branch that is chosen is run. One node stands for all of it:
// it runs on one task, and its derivative is libtorch's own of whatever has run.
//
// A branch holds libtorch's operators, constants, Graph::print() and further cond() and while_loop(). What
// changes a variable is outside: assign the result. They throw InvalidArgument, with the node, for anything
// else, and where the branches differ in the number or types of their results.

#include <functional>
#include <source_location>
#include <vector>

#include "muster/graph.h"

namespace muster {

/// The results of `then_branch` where the predicate, a tensor of one element, is not 0, and of `else_branch`
/// otherwise.
std::vector<Output> cond(const Output& predicate, const std::function<std::vector<Output>()>& then_branch,
                         const std::function<std::vector<Output>()>& else_branch,
                         std::source_location where = std::source_location::current());

/// The loop variables, which begin as `initial`, after `body` has given them new values as long as
/// `condition`, a tensor of one element, is not 0. They keep their types; their sizes may change.
std::vector<Output> while_loop(const std::vector<Output>& initial,
                               const std::function<Output(const std::vector<Output>&)>& condition,
                               const std::function<std::vector<Output>(const std::vector<Output>&)>& body,
                               std::source_location where = std::source_location::current());

}  // namespace muster
