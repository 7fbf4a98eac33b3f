#pragma once

// How a graph of libtorch's interpreter (of a trace, or of a TorchScript file) becomes nodes of ours.
//
// Used by one thread.

#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <torch/csrc/jit/ir/ir.h>

#include "muster/graph.h"

namespace muster::detail {

/// The constants of a trace that were others with a larger batch: value = fixed + batches * batch.
using BatchConstants = std::unordered_map<const torch::jit::Value*, Size>;

class InterpreterGraphImporter {
 public:
  InterpreterGraphImporter(Graph& graph, std::string name, std::source_location where)
      : graph_(graph), name_(std::move(name)), where_(where) {}

  /// What a value of the interpreter's is: an input, or a parameter.
  void bind(const torch::jit::Value* value, Argument argument) {
    values_.insert_or_assign(value, std::move(argument));
  }

  /// A value that stands for a module; its attributes are parameters, buffers and modules.
  void bind_module(const torch::jit::Value* value, const std::string& path, const torch::jit::Module& module);

  /// Which constants depend on the batch, and an input whose first dimension has its size.
  void set_batch(BatchConstants constants, const Output& input) {
    batch_constants_ = std::move(constants);
    batch_input_ = input;
  }

  /// The names of the variables that the nodes change, as they are run.
  std::unordered_set<std::string> changed_variables() const;

  /// Adds the nodes, and gives the results. Throws InvalidArgument for what can't be a node.
  std::vector<Output> import(const torch::jit::Graph& graph);

  /// The variable of a parameter or buffer, made where there is none.
  Output variable(const std::string& path, const at::Tensor& value, bool trainable);

 private:
  struct ModulePath {
    std::string path;
    std::shared_ptr<torch::jit::Module> module;  // shared: values stand for it in several places
  };

  void import_node(const torch::jit::Node& node);
  void import_operator(const torch::jit::Node& node);
  Node add_operator_node(const c10::FunctionSchema& schema, std::vector<Argument> arguments);
  void import_attribute(const torch::jit::Node& node);
  bool import_structure(const torch::jit::Node& node);
  std::vector<Argument> arguments_of(const torch::jit::Node& node);
  Argument argument_of(const torch::jit::Value* value);
  void set_results(const torch::jit::Node& node, const Node& made);
  std::string scope_of(const std::vector<Argument>& arguments) const;
  Argument list_of(const torch::jit::Node& node);
  Output batch_size();
  void replace_in_place(const torch::jit::Node& node, const std::vector<Argument>& arguments);
  [[noreturn]] void refuse(const torch::jit::Node& node, const std::string& why) const;

  Graph& graph_;
  const std::string name_;
  const std::source_location where_;
  std::unordered_map<const torch::jit::Value*, Argument> values_;
  std::unordered_map<const torch::jit::Value*, std::vector<Argument>> tuples_;
  std::unordered_map<const torch::jit::Value*, ModulePath> modules_;
  std::unordered_map<std::string, Output> variables_;
  std::unordered_map<const GraphNode*, std::string> scopes_;  // of nodes that were made here
  std::unordered_set<const torch::jit::Value*> views_;        // values that share memory with another
  std::unordered_map<const GraphNode*, Output>
      holds_;                    // values of variables that were changed: whose they are
  std::vector<Output> changed_;  // variables, in the order of their first change
  std::unordered_map<const GraphNode*, Output> current_;  // their values now
  std::unordered_set<std::string> hidden_;  // names of variables that operators change themselves
  BatchConstants batch_constants_;
  Output batch_input_;
  Output batch_size_;
};

}  // namespace muster::detail
