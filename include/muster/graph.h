#pragma once

// A dataflow graph of libtorch's own operators. A node is one of them by its name in libtorch's dispatcher
// (aten::conv2d, or one of your own that TORCH_LIBRARY registers), with the outputs of other nodes and plain
// values as its arguments; a few nodes more, as variables and placeholders, are Muster's. Building computes
// nothing: a Session (session.h) runs what is asked for.
//
//   muster::Graph graph;
//   muster::Output x = graph.placeholder("x", torch::kFloat, {muster::kBatch, 784});
//   muster::Output w = graph.variable("w", torch::zeros({10, 784}));
//   muster::Output y = muster::ops::log_softmax(muster::ops::linear(x, w), 1);
//
// muster/ops.h has a function for each operator; Graph::add() takes any by name. Arguments are compared with
// the operator's schema when a node is made, and the types and sizes of its results are worked out then, as
// far as they can be known: what is wrong throws InvalidArgument at once, with the node and the line of your
// source that made it.
//
// Nodes belong to their graph, and live as long as it does. Output and Node are small values that point to
// them. A graph is used by one thread at a time; nothing here blocks.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "muster/optim.h"

namespace muster {

class Graph;
class Node;

namespace detail {
struct GraphNode;
struct GraphData;
}  // namespace detail

/// A size that is not known before the graph runs: that of the batch, the same wherever it stands.
constexpr int64_t kBatch = -1;

/// A size of a tensor: `fixed`, and `batches` times the size of the batch.
struct Size {
  int64_t fixed = 0;
  int64_t batches = 0;

  bool operator==(const Size&) const = default;
};

/// The sizes of a tensor, as far as they are known before it is computed.
class Shape {
 public:
  Shape() = default;  ///< Nothing is known, not even the number of dimensions.
  Shape(std::initializer_list<int64_t> sizes) : Shape(at::IntArrayRef(sizes)) {}
  explicit Shape(at::IntArrayRef sizes);  ///< kBatch stands for the size of the batch.
  explicit Shape(std::vector<Size> sizes) : sizes_(std::move(sizes)) {}

  bool known() const { return sizes_.has_value(); }
  const std::vector<Size>& sizes() const { return *sizes_; }  ///< Only where it is known.
  bool accepts(at::IntArrayRef sizes) const;  ///< Whether a tensor of these sizes has this shape.
  std::string to_string() const;              ///< "[N, 784]", "[2N + 1]", or "?"

  bool operator==(const Shape&) const = default;

 private:
  std::optional<std::vector<Size>> sizes_;
};

/// One result of a node: what other nodes take as an argument, and what a Session can fetch.
class Output {
 public:
  Output() = default;  ///< None: an optional tensor that is not given.

  bool defined() const { return node_ != nullptr; }
  Node node() const;
  int index() const { return index_; }  ///< Which of the node's results it is.
  std::string name() const;             ///< "encoder/relu:0"
  const Shape& shape() const;
  std::optional<at::ScalarType> dtype() const;  ///< Empty where it is not known, and for what is no tensor.

  /// Gives the node another name, within the scopes that it was made in. Throws InvalidArgument where the
  /// graph has a node of that name.
  Output named(std::string_view name) const;

  bool operator==(const Output&) const = default;

  /// For Muster's own rooms.
  Output(detail::GraphNode* node, int index) : node_(node), index_(index) {}
  detail::GraphNode* get() const { return node_; }

 private:
  detail::GraphNode* node_ = nullptr;
  int index_ = 0;
};

/// A node of a graph: what a Session can run for its effect, and what others can be made to wait for.
class Node {
 public:
  Node() = default;
  Node(const Output& output) : node_(output.get()) {}  // NOLINT: an output stands for its node

  bool defined() const { return node_ != nullptr; }
  const std::string& name() const;     ///< "encoder/relu"
  const std::string& op() const;       ///< "aten::relu"
  const std::string& device() const;   ///< As it was asked for: "/job:ps/task:0", or empty.
  std::string where() const;           ///< The line of source that made it: "model.cc:17"
  int outputs() const;                 ///< How many results it has.
  Output output(int index = 0) const;  ///< Throws InvalidArgument for one that it does not have.

  bool operator==(const Node&) const = default;

  /// For Muster's own rooms.
  explicit Node(detail::GraphNode* node) : node_(node) {}
  detail::GraphNode* get() const { return node_; }

 private:
  detail::GraphNode* node_ = nullptr;
};

/// Says where a new node is to be placed: "/job:ps/task:0", or a part of it.
using DeviceFunction = std::function<std::string(const Node&)>;

/// An argument of an operator: an output, a list of outputs (undefined ones are None), or a value of any type
/// that libtorch's operators take: a number, a text, a list of numbers, a type, nothing.
class Argument {
 public:
  Argument(const Output& output) : is_list_(false), outputs_{output} {}              // NOLINT
  Argument(std::vector<Output> list) : is_list_(true), outputs_(std::move(list)) {}  // NOLINT
  template <typename T>
  requires(std::is_constructible_v<c10::IValue, const T&> && !std::is_same_v<T, std::vector<Output>>)
      Argument(const T& value)
      : value_{value} {}  // NOLINT

  bool is_list() const { return is_list_; }
  bool is_value() const { return !is_list_ && outputs_.empty(); }
  const std::vector<Output>& outputs() const { return outputs_; }
  const c10::IValue& value() const { return value_; }

  bool operator==(const Argument&) const = delete;

 private:
  bool is_list_ = false;
  std::vector<Output> outputs_;
  c10::IValue value_;
};

/// An argument with its name in the schema.
struct NamedArgument {
  std::string name;
  Argument value;
};

/// While it lives, a graph's new nodes are made so; see the functions of Graph that give it. Scopes end in
/// the reverse of the order in which they began.
class [[nodiscard]] Scope {
 public:
  Scope(Scope&& other) noexcept : end_(std::exchange(other.end_, nullptr)) {}
  Scope& operator=(Scope&&) = delete;
  ~Scope() {
    if (end_) end_();
  }

  /// For Muster's own rooms.
  explicit Scope(std::function<void()> end) : end_(std::move(end)) {}

 private:
  std::function<void()> end_;
};

class Graph {
 public:
  using Where = std::source_location;

  Graph();
  ~Graph();
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;

  /// A tensor that each run is given (a feed).
  Output placeholder(std::string_view name, at::ScalarType dtype, Shape shape = {},
                     Where where = Where::current());

  /// A tensor that is the same in all runs. It is not copied: nobody may change it any more.
  Output constant(const at::Tensor& value, std::string_view name = "constant",
                  Where where = Where::current());
  Output constant(const at::Scalar& value, at::ScalarType dtype = at::kFloat,
                  std::string_view name = "constant", Where where = Where::current());

  /// A number, a text or a list that is the same in all runs, for arguments that are no tensors.
  Output value(const c10::IValue& value, std::string_view name = "constant", Where where = Where::current());

  /// A tensor that a session keeps from run to run. It has no value before initializer() has run. Its output
  /// is the value when the node runs; nothing that happens to the variable afterwards changes that. One that
  /// is not trainable is left alone by minimize(). Throws InvalidArgument for an initial value that another
  /// variable is needed for.
  Output variable(std::string_view name, const at::Tensor& initial, bool trainable = true,
                  Where where = Where::current());
  Output variable(std::string_view name, const Output& initial, bool trainable = true,
                  Where where = Where::current());

  /// The value of a variable once more, when this node runs: after what it is made to wait for.
  Output read(const Output& variable, Where where = Where::current());

  /// Gives a variable another value. Its output is the new one.
  Output assign(const Output& variable, const Output& value, Where where = Where::current());

  /// Adds to a variable, and gives the sum. What others add at the same time is not lost.
  Output assign_add(const Output& variable, const Output& value, Where where = Where::current());

  /// Whether the variable has a value, as a tensor.
  Output is_initialized(const Output& variable, Where where = Where::current());

  /// The same value, which is printed on standard error of the task that runs it, with the text before it.
  Output print(const Output& value, std::string_view text, Where where = Where::current());

  /// A node that runs when all of these have.
  Node group(const std::vector<Node>& nodes, std::string_view name = "group", Where where = Where::current());

  /// Runs what gives all the variables so far their initial values.
  Node initializer(Where where = Where::current());

  /// A node for any operator: "aten::relu", or "aten::add.Tensor" where the overload matters; the first
  /// overload that takes these arguments is used otherwise. What has a default may be left out, or given by
  /// name. Operators that change their arguments are refused: use the form that does not (relu for relu_).
  Node add(const std::string& op, const std::vector<Argument>& arguments = {},
           const std::vector<NamedArgument>& named = {}, Where where = Where::current());

  /// New nodes are called "name/...".
  Scope name_scope(std::string_view name);

  /// New nodes are placed here: "/job:ps/task:0", or a part of it. An inner device overrides those parts of
  /// an outer one that it names. Throws InvalidArgument for what is no device.
  Scope with_device(std::string_view device);

  /// The device of a new node is what a function of the node says, for example replica_device_setter().
  Scope with_device(DeviceFunction device);

  /// New nodes are placed where this node is. Devices of outer scopes do not count for them; one of an inner
  /// scope must fit the task where this node is, or a session refuses to run them, unless placement is soft.
  Scope colocate_with(const Node& node);

  /// New nodes run after these.
  Scope control_dependencies(std::vector<Node> nodes);

  /// The node of this name, or an undefined one.
  Node find(std::string_view name) const;

  /// The output that "name:1" means; "name" is its first. Throws InvalidArgument for one that is not there.
  Output output(std::string_view name) const;

  std::vector<Node> nodes() const;  ///< All, in the order in which they were made.
  std::vector<Output> variables() const;
  size_t size() const;

  /// Writes the graph to a file, as a protobuf message (docs/graph-format.md), and large constants to another
  /// beside it, `file`.tensors. A file that was there is replaced when all is written. Throws SystemError where
  /// that fails.
  void save(const std::string& file) const;

  /// Reads what save() wrote. Throws SystemError for a file that can't be read, DataLoss for one that is
  /// truncated, InvalidArgument for a graph that makes no sense. The operators must be there.
  static Graph load(const std::string& file);

  /// For Muster's own rooms.
  detail::GraphData& data() const { return *data_; }

 private:
  Output assign_by(const std::string& op, const Output& variable, const Output& value, Where where);

  std::unique_ptr<detail::GraphData> data_;
};

/// How variables are spread over the tasks of parameter servers.
struct ReplicaDeviceOptions {
  int ps_tasks = 1;
  std::string ps_device = "/job:ps";          ///< Of variables; a task is added to it.
  std::string worker_device = "/job:worker";  ///< Of all other nodes.
  bool by_bytes = false;  ///< To the task with the fewest bytes so far, instead of one after the other.
};

/// For Graph::with_device(): variables go to the parameter servers, all else to the worker. Throws
/// InvalidArgument where there is no task. A copy goes on where the other one is.
DeviceFunction replica_device_setter(const ReplicaDeviceOptions& options);

/// Adds nodes that give each task the sum of values of all tasks: `values` are tensors of the same sizes,
/// each on a task of its own, and the results are the sum, each where its value is. A task adds up its part
/// of all, and gets the others' parts (scatter-reduce and all-gather), in the same order on all: the results
/// are the same bits. Throws InvalidArgument where there are none, or of other types or sizes.
std::vector<Output> all_reduce(const std::vector<Output>& values,
                               std::source_location where = std::source_location::current());

/// Adds the nodes to a graph that compute the derivative of the sum of `y` by each of `x`: with respect to
/// variables, placeholders or any results between. They run on the devices of the nodes whose derivatives
/// they are. What one computes is libtorch's own autograd of its node. `y_gradients`, one for each of `y`,
/// are ones where they are not given. Throws InvalidArgument where no way leads from an `x` to a `y`.
std::vector<Output> gradients(const std::vector<Output>& y, const std::vector<Output>& x,
                              const std::vector<Output>& y_gradients = {},
                              std::source_location where = std::source_location::current());

/// Adds the nodes that change variables by their gradients, as the optimizer says, and gives one that runs
/// after all of them. `lr`, a scalar, is the learning rate of a step, where it is given. Variables are of
/// float32 or float64. Throws InvalidArgument for what is no variable.
Node apply_gradients(const optim::Optimizer& optimizer, const std::vector<Output>& gradients,
                     const std::vector<Output>& variables, const Output& lr = {},
                     std::source_location where = std::source_location::current());

/// The same with the gradients of a loss, for all trainable variables of the graph that it depends on.
Node minimize(const optim::Optimizer& optimizer, const Output& loss, const Output& lr = {},
              std::source_location where = std::source_location::current());

}  // namespace muster
