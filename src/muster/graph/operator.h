#pragma once

// What a node can be: an operator of libtorch's, found by its name, or one of the few that only a cluster
// needs. Both have a schema, as libtorch writes them, so that arguments are checked, saved and drawn in one
// way.
//
//   auto add = Operator::find("aten::add.Tensor");
//   add->schema();                                   // add.Tensor(Tensor self, Tensor other, *, Scalar ...)
//
// Operators are immutable and thread-safe. find() throws InvalidArgument for a name that nobody knows.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

namespace muster::detail {

/// Muster's own operators. The rest, kLibtorch, are libtorch's.
enum class OperatorKind {
  kLibtorch,
  kPlaceholder,    ///< a tensor that each run is given
  kConstant,       ///< a tensor that is the same in all runs
  kVariable,       ///< a tensor that a session keeps
  kRead,           ///< its value once more
  kAssign,         ///< gives a variable another value
  kAssignAdd,      ///< adds to a variable, whoever else does
  kIsInitialized,  ///< whether a variable has a value
  kUpdate,         ///< changes a variable by a rule of the room optim
  kAccumulate,     ///< keeps the gradient of a replica for a variable (muster/sync_replicas.h)
  kPush,           ///< hands the gradients in, after all were kept; gives what is to be done with them
  kCarryOut,       ///< does it to a variable
  kNextToken,      ///< waits for leave to compute the next gradients; gives the global step
  kGradient,       ///< libtorch's derivative of another node
  kSumGradients,   ///< adds up what the users of an output say of its gradient
  kGroup,          ///< does nothing, after others
  kPrint,          ///< gives what it takes, and prints it
  kCond,           ///< one of two bodies (graph_body.h), as a tensor says
  kWhileLoop,      ///< a body, as long as another one says
  kScript,         ///< a whole TorchScript module (script_module.h)
  kQueue,          ///< where a queue is (muster/queue.h)
  kEnqueue,        ///< puts an element into it
  kDequeue,        ///< takes one out
  kQueueSize,      ///< how many it has
  kCloseQueue,     ///< lets nobody put one in any more
  kSend,           ///< gives a value to another task
  kReceive,        ///< takes it there
};

class Operator {
 public:
  /// The operator of this name: "aten::add.Tensor". One without the overload, or with a dot and nothing after
  /// it, is that overload which has no name. Throws InvalidArgument with the nearest names where there is none.
  static std::shared_ptr<const Operator> find(const std::string& name);

  /// All overloads of "aten::add", in the order in which arguments are tried: tensors before numbers. Throws
  /// as find() does.
  static std::vector<std::shared_ptr<const Operator>> overloads(const std::string& name);

  const std::string& name() const { return name_; }  ///< "aten::add.Tensor"
  OperatorKind kind() const { return kind_; }
  const c10::FunctionSchema& schema() const { return *schema_; }

  /// Whether it gives the same results for the same arguments, and does nothing else. Operators that are not
  /// libtorch's own are never presumed to be so.
  bool is_pure() const { return is_pure_; }

  /// Whether it gives a list of tensors, each of which is a result of its node.
  bool gives_list() const;

  /// Whether autograd knows its derivative.
  bool is_differentiable() const {
    return kind_ == OperatorKind::kLibtorch || kind_ == OperatorKind::kPrint ||
           kind_ == OperatorKind::kCond || kind_ == OperatorKind::kWhileLoop ||
           kind_ == OperatorKind::kScript;
  }

  /// Whether it changes the argument, which then has to be a variable.
  bool writes(size_t argument) const;

  /// For operators of libtorch's: takes the arguments from the stack, and leaves the results there.
  void call(torch::jit::Stack& stack) const {
    if (handle_) {
      handle_->callBoxed(stack);
    } else {
      operation_(stack);
    }
  }

  /// The dispatcher's; empty for those that only libtorch's interpreter knows, and for ours.
  const std::optional<c10::OperatorHandle>& handle() const { return handle_; }

  Operator(std::string name, c10::FunctionSchema schema, OperatorKind kind);
  explicit Operator(c10::OperatorHandle handle);
  Operator(std::string name, c10::FunctionSchema schema, std::function<void(torch::jit::Stack&)> operation);

 private:
  std::string name_;
  std::shared_ptr<const c10::FunctionSchema> schema_;  // shared: libtorch's own outlive everything
  OperatorKind kind_ = OperatorKind::kLibtorch;
  bool is_pure_ = true;
  std::optional<c10::OperatorHandle> handle_;
  std::function<void(torch::jit::Stack&)> operation_;
};

using OperatorPtr = std::shared_ptr<const Operator>;  // shared by nodes, and by programs that outlive a graph

}  // namespace muster::detail
