#pragma once

// What Graph, Node and Output stand for: the nodes of a graph, in the order in which they were made. A node
// is made after those that it takes anything from, so that the order of their numbers is one in which they
// can run.
//
// Not thread-safe, as Graph.

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/jit_type.h>

#include "muster/graph.h"
#include "muster/graph/operator.h"
#include "muster/graph/shape_inference.h"

namespace muster::detail {

/// What is known of a result before it is computed.
struct OutputInfo {
  c10::TypePtr type;                    ///< as the schema says
  std::optional<at::ScalarType> dtype;  ///< of a tensor
  Shape shape;                          ///< of a tensor
  std::optional<Examples> examples;     ///< for the nodes that take it (shape_inference.h)
};

/// A line of the program that made a node, for messages. Shared: many nodes are of one file.
struct SourceLine {
  std::shared_ptr<const std::string> file;
  uint32_t line = 0;
};

struct GraphNode {
  GraphData* graph = nullptr;
  int64_t id = 0;  ///< its place in the graph
  std::string name;
  OperatorPtr op;
  std::vector<Argument> arguments;  ///< one for each of the schema's
  std::vector<GraphNode*> control;  ///< nodes that run before it
  std::string device;               ///< as it was asked for
  GraphNode* colocated = nullptr;   ///< a node that it belongs to, and whose device it has instead of its own
  GraphNode* beside = nullptr;      ///< a node that it was asked to be with; its own device must fit there
  int32_t depth = 0;   ///< how often the longest way to it goes from task to task (partitioner.h)
  int64_t filler = 0;  ///< not 0: it runs with others of this number, when its task has nothing else to do
  SourceLine where;
  std::vector<OutputInfo> outputs;

  /// Calls `visit` with every output that it takes, in the order of the arguments. A variable that it only
  /// changes is not one that it takes.
  template <typename Visit>
  void each_input(const Visit& visit) const {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].is_value() || op->writes(i)) continue;
      for (const auto& output : arguments[i].outputs()) {
        if (output.defined()) visit(output);
      }
    }
  }

  /// "node 'encoder/relu' (aten::relu, made at model.cc:17)", for messages.
  std::string describe() const;
};

/// What is known of an output that is defined.
inline OutputInfo& info_of(const Output& output) {
  return output.get()->outputs[static_cast<size_t>(output.index())];
}

struct GraphData {
  std::deque<GraphNode> nodes;  // a deque: nodes stay where they are
  std::unordered_map<std::string, GraphNode*> names;
  std::unordered_map<std::string, std::vector<OperatorPtr>> operators;  // those that were looked up
  std::unordered_map<std::string, int> used_names;                      // the next number for "relu_1"
  std::vector<GraphNode*> variables;
  // The tensors of modules that variables were made of: a module may be traced again.
  std::unordered_map<const GraphNode*, at::Tensor> traced_tensors;
  std::vector<GraphNode*> initializers;                                       // one for each variable
  std::unordered_map<const char*, std::shared_ptr<const std::string>> files;  // by source_location's names
  int64_t gradient_calls = 0;
  uint64_t placements = 0;  // how often nodes were moved: sessions have to look where they are now

  // What scopes say of new nodes.
  std::string scope;  // "encoder/", or empty
  std::vector<DeviceFunction> devices;
  std::vector<GraphNode*> control;
  GraphNode* beside = nullptr;

  /// A new node without a word of its arguments: Graph::add() and the functions of Graph check them.
  GraphNode& make(OperatorPtr op, std::string_view name, bool is_name_given, std::source_location where);

  /// Asks the scopes for the device of a new node. make() has done so for all but variables.
  void set_device(GraphNode& node) const;
};

/// What becomes of arguments: those for each of a schema's, with the defaults of the ones that are not given;
/// or, where the schema does not take them, why not, and how many fitted until then.
struct MatchedArguments {
  std::vector<Argument> arguments;
  std::string refusal;
};
MatchedArguments match_arguments(const Operator& op, const std::vector<Argument>& arguments,
                                 const std::vector<NamedArgument>& named);

/// The type of a value that may go from task to task, by its name. Throws InvalidArgument for any other;
/// `subject` begins the message.
c10::TypePtr type_that_travels(const std::string& name, const std::string& subject);

/// The output that a result of a node muster::gradient is the gradient of.
Output differentiated(const Output& gradient);

/// Throws InvalidArgument where a value can't be the variable's, by its type or shape; `subject` begins the
/// message.
void check_assignment(const Output& variable, const Output& value, const std::string& subject);

/// A node that changes the variable, or goes with it, on its task.
GraphNode& make_beside(const Output& variable, const char* op, const std::string& name,
                       std::source_location where);

/// Says what is known of the result of a node muster::push or muster::next_token.
void set_replica_output(GraphNode& node);

/// Says what is known of the results of a node muster::dequeue or muster::queue_size.
void set_queue_outputs(GraphNode& node);

/// Says what is known of a node's one result: a tensor of this type and shape.
void set_output(GraphNode& node, std::optional<at::ScalarType> dtype, const Shape& shape);

/// A shape as an argument: sizes, where -4 stands for four times the size of the batch; nothing where that
/// does not say it all.
c10::IValue shape_value(const Shape& shape);
Shape shape_of_value(const c10::IValue& value);

/// "model.cc:17"
std::string describe(const std::source_location& where);
std::string describe(const SourceLine& where);

}  // namespace muster::detail
