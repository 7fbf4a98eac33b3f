#pragma once

// An ordinary torch::nn::Module, or a TorchScript file of Python's, as nodes of a graph (graph.h).
//
//   muster::TracedModule traced = muster::trace(graph, net, {torch::zeros({2, 1, 28, 28})});
//   muster::Output loss = muster::ops::nll_loss(traced.outputs[0], labels);
//
// A trace runs the module's forward function on examples and notes which operators it calls. Parameters and
// buffers become variables of the graph, with the names that state_dict() has in Python ("encoder.weight").
// A node's name begins with that of the submodule whose parameters it uses, or of the node before it:
// "encoder/addmm". So a table of patterns can place a whole submodule.
//
// The first dimension of the examples is that of the batch, and stays open: the module is traced with three
// sizes of it, and numbers that grow with it are computed from it. What else depends on the values of tensors
// is what it was for the examples: a trace holds no `if`. A module that calls other operators when the batch
// is larger is refused, and so is one that changes a part of a tensor in place.
//
// The module itself is as it was before: running statistics, too. One that is traced again, as for evaluation
// after net->eval(), uses the variables of its first trace.

#include <functional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "muster/graph.h"

namespace muster {

/// What a module became: the placeholders that stand for its arguments, and its results.
struct TracedModule {
  std::vector<Output> inputs;
  std::vector<Output> outputs;
};

/// The forward function of a module: tensors in, tensors out.
using ForwardFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// For modules whose forward function has several arguments or results. `name` is put before the names of the
/// variables and nodes, with a dot, so that a graph can hold several modules. Throws InvalidArgument for what
/// a trace can't hold, and whatever the module throws.
TracedModule trace_function(Graph& graph, torch::nn::Module& module, const ForwardFunction& forward,
                            const std::vector<at::Tensor>& examples, const std::string& name = "",
                            std::source_location where = std::source_location::current());

/// A module holder, as torch::nn::Sequential, whose forward function takes one tensor and gives one.
template <typename Holder>
TracedModule trace(Graph& graph, Holder& module, const std::vector<at::Tensor>& examples,
                   const std::string& name = "",
                   std::source_location where = std::source_location::current()) {
  const ForwardFunction forward = [&module](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{module->forward(inputs.front())};
  };
  return trace_function(graph, *module, forward, examples, name, where);
}

/// A file that torch.jit.save() wrote in Python, from torch.jit.trace() or torch.jit.script(). The examples
/// give the types and shapes of its arguments; the first dimension is that of the batch. Throws
/// InvalidArgument for what is no such file, and for control flow that depends on data, which
/// import_as_one_node() takes.
TracedModule import_module(Graph& graph, const std::string& file, const std::vector<at::Tensor>& examples,
                           const std::string& name = "",
                           std::source_location where = std::source_location::current());

/// The same as one node, which libtorch's interpreter runs, whatever its control flow: on one task, and with
/// a derivative. Its parameters and buffers are variables, as with import_module(). Its function forward
/// takes tensors, and gives one or a tuple of them.
TracedModule import_as_one_node(Graph& graph, const std::string& file,
                                const std::vector<at::Tensor>& examples, const std::string& name = "",
                                std::source_location where = std::source_location::current());

}  // namespace muster
