#pragma once

// A TorchScript module that stays as it is inside of one node: its code, without its parameters, which are
// variables of the graph.
//
// Pure functions.

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include "muster/graph/graph_node.h"

namespace muster::detail {

/// What a module's forward function computes: of its arguments, and after them its parameters and buffers.
struct ScriptFunction {
  std::shared_ptr<torch::jit::Graph> graph;  ///< libtorch hands it out shared
  std::vector<at::Tensor> parameters;        ///< as the module has them
  size_t inputs = 0;
  size_t results = 0;  ///< tensors: one, or as many as its tuple has
  bool gives_tuple = false;
};

/// Throws InvalidArgument where the module has no function forward, or one that takes or gives what is no
/// tensor.
ScriptFunction function_of(const torch::jit::Module& module);

/// The module's code, with tensors of no elements in the place of its own.
std::string code_of(const torch::jit::Module& module);

/// What code_of() gave. Throws InvalidArgument for anything else.
torch::jit::Module module_of_code(const std::string& code);

/// Says how many results a node muster::script has. Throws InvalidArgument where its arguments do not fit;
/// `subject` begins the message.
void set_script_outputs(GraphNode& node, const std::string& subject);

}  // namespace muster::detail
