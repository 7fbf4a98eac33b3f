// How derivatives become nodes. Each node F on a way from an x to a y gets a node muster::gradient, whose
// arguments are F's outputs (so that it runs after F, where F's autograd state is), the gradients of those,
// and which inputs of F are wanted. Where an output has several users, muster::sum_gradients adds up what
// they say, the last user first: that is autograd's own order, so that running many nodes under one tape
// (room runtime) gives the same bits.

#include "muster/graph/gradients.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "muster/base/error.h"

namespace muster::detail {

// What is not known may be differentiable; then libtorch finds out.
bool may_have_gradient(const Output& output) {
  const auto& info = info_of(output);
  if (info.type->kind() != c10::TypeKind::TensorType) return false;
  return !info.dtype || at::isFloatingType(*info.dtype) || at::isComplexType(*info.dtype);
}

std::vector<Output> variables_behind(const Output& loss, const std::string& subject) {
  if (!loss.defined()) raise<InvalidArgument>("{}: the loss is undefined", subject);
  std::set<int64_t> seen;
  std::vector<GraphNode*> left = {loss.get()};
  while (!left.empty()) {
    GraphNode* node = left.back();
    left.pop_back();
    if (!seen.insert(node->id).second || node->op->name() == "aten::detach") continue;
    node->each_input([&left](const Output& input) {
      if (may_have_gradient(input)) left.push_back(input.get());
    });
  }
  std::vector<Output> found;
  for (auto* variable : loss.get()->graph->variables) {
    const bool is_trainable = variable->arguments[2].value().toBool();
    if (is_trainable && seen.contains(variable->id) && may_have_gradient({variable, 0}))
      found.emplace_back(variable, 0);
  }
  if (found.empty()) raise<InvalidArgument>("{}: {} depends on no trainable variable", subject, loss.name());
  return found;
}

}  // namespace muster::detail

namespace muster {

namespace {

using detail::GraphData;
using detail::GraphNode;
using detail::may_have_gradient;
using detail::OperatorKind;
using detail::raise;

using OutputKey = std::pair<int64_t, int>;  // node, index

OutputKey key_of(const Output& output) {
  return {output.get()->id, output.index()};
}

class GradientBuilder {
 public:
  GradientBuilder(GraphData& graph, std::source_location where, const detail::LeftOut& left_out)
      : graph_(graph), where_(where), left_out_(left_out) {
    call_ = ++graph.gradient_calls;
  }

  std::vector<Output> build(const std::vector<Output>& y, const std::vector<Output>& x,
                            const std::vector<Output>& y_gradients) {
    find_ways(y, x);
    for (size_t i = 0; i < y.size(); ++i)
      if (reached_.contains(key_of(y[i])))
        contributions_[key_of(y[i])].push_back(y_gradients.empty() ? ones_like(y[i]) : y_gradients[i]);
    // From the last node to the first: what an output's users say of it is complete when its node is reached.
    for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) add_gradient(**node);
    std::vector<Output> results;
    for (const auto& each : x) results.push_back(total(each));
    return results;
  }

  std::vector<Output> build(GraphNode& node, const std::vector<Output>& gradients,
                            const std::vector<Output>& inputs) {
    for (const auto& input : inputs) reached_.insert(key_of(input));
    for (size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i].defined()) contributions_[{node.id, static_cast<int>(i)}] = {gradients[i]};
    add_gradient(node);
    std::vector<Output> results;
    for (const auto& input : inputs) results.push_back(total(input));
    return results;
  }

 private:
  // The nodes that are reached from an x and lead to a y, and the outputs among them that lie on the way.
  void find_ways(const std::vector<Output>& y, const std::vector<Output>& x) {
    std::set<int64_t> wanted;  // nodes that a y needs
    std::vector<GraphNode*> left;
    for (const auto& each : y) left.push_back(each.get());
    while (!left.empty()) {
      GraphNode* node = left.back();
      left.pop_back();
      if (!wanted.insert(node->id).second) continue;
      node->each_input([&left](const Output& input) { left.push_back(input.get()); });
    }
    for (const auto& each : x) reached_.insert(key_of(each));
    for (const int64_t id : wanted) {
      GraphNode& node = graph_.nodes[static_cast<size_t>(id)];
      bool is_reached = false;
      node.each_input([&](const Output& input) { is_reached = is_reached || leads_on(node, input); });
      if (!is_reached) continue;
      if (node.op->kind() == OperatorKind::kGradient || node.op->kind() == OperatorKind::kSumGradients)
        raise<InvalidArgument>(
            "gradients ({}): {} is itself a derivative; derivatives of derivatives are not "
            "supported in graphs",
            detail::describe(where_), node.describe());
      if (!node.op->is_differentiable()) continue;
      nodes_.push_back(&node);
      for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i) {
        if (may_have_gradient({&node, i})) reached_.insert({node.id, i});
      }
    }
  }

  bool leads_on(const GraphNode& node, const Output& input) const {
    return reached_.contains(key_of(input)) && may_have_gradient(input) &&
           !left_out_.contains({&node, input.get()});
  }

  void add_gradient(GraphNode& node) {
    std::vector<Output> outputs;
    std::vector<Output> gradients;
    for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i) {
      const Output output(&node, i);
      if (!contributions_.contains(key_of(output))) continue;
      outputs.push_back(output);
      gradients.push_back(total(output));
    }
    if (outputs.empty()) return;
    std::vector<int64_t> positions;
    std::vector<Output> inputs;
    int64_t position = 0;
    node.each_input([&](const Output& input) {
      if (leads_on(node, input) && std::find(inputs.begin(), inputs.end(), input) == inputs.end()) {
        positions.push_back(position);
        inputs.push_back(input);
      }
      ++position;
    });
    GraphNode& made = make("muster::gradient", node);
    made.arguments = {Argument(std::move(outputs)), Argument(std::move(gradients)), Argument(positions),
                      Argument(call_)};
    for (size_t i = 0; i < inputs.size(); ++i) {
      made.outputs.push_back(info_of(inputs[i]));
      contributions_[key_of(inputs[i])].emplace_back(&made, static_cast<int>(i));
    }
  }

  // What all users of an output say of its gradient.
  Output total(const Output& of) {
    auto& contributions = contributions_[key_of(of)];
    if (contributions.size() < 2) return contributions.empty() ? Output() : contributions.front();
    GraphNode& made = make("muster::sum_gradients", *of.get());
    made.outputs = {info_of(of)};
    made.arguments = {Argument(contributions)};
    contributions = {Output(&made, 0)};
    return contributions.front();
  }

  Output ones_like(const Output& of) {
    GraphNode& made = make("aten::ones_like", *of.get());
    made.arguments = match_arguments(*made.op, {Argument(of)}, {}).arguments;
    made.outputs = {info_of(of)};
    return {&made, 0};
  }

  GraphNode& make(const char* op, GraphNode& of) {
    const std::string scope = std::exchange(graph_.scope, "");
    GraphNode& made = graph_.make(detail::Operator::find(op), "gradients/" + of.name, false, where_);
    graph_.scope = scope;
    made.colocated = &of;
    made.device = of.device;
    return made;
  }

  GraphData& graph_;
  const std::source_location where_;
  const detail::LeftOut& left_out_;
  int64_t call_ = 0;
  std::set<OutputKey> reached_;
  std::vector<GraphNode*> nodes_;
  std::map<OutputKey, std::vector<Output>> contributions_;
};

}  // namespace

std::vector<Output> detail::gradients_or_none(const std::vector<Output>& y, const std::vector<Output>& x,
                                              const std::vector<Output>& y_gradients,
                                              std::source_location where, const LeftOut& left_out) {
  return GradientBuilder(*y.front().get()->graph, where, left_out).build(y, x, y_gradients);
}

std::vector<Output> detail::node_gradients(GraphNode& node, const std::vector<Output>& gradients,
                                           const std::vector<Output>& inputs, std::source_location where) {
  const LeftOut nothing;
  return GradientBuilder(*node.graph, where, nothing).build(node, gradients, inputs);
}

namespace detail {

void check_updated(const Output& variable, const std::string& subject) {
  if (!variable.defined() || variable.get()->op->kind() != OperatorKind::kVariable)
    raise<InvalidArgument>("{}: {} is no variable", subject, variable.name());
  if (variable.dtype() != at::kFloat && variable.dtype() != at::kDouble)
    raise<InvalidArgument>("{}: the variable '{}' is of type {}; expected float32 or float64", subject,
                           variable.node().name(), c10::toString(*variable.dtype()));
}

GraphNode& make_beside(const Output& variable, const char* op, const std::string& name,
                       std::source_location where) {
  GraphNode& node = variable.get()->graph->make(Operator::find(op), name, /*is_name_given=*/false, where);
  node.colocated = variable.get();
  node.device = variable.get()->device;
  return node;
}

void set_replica_output(GraphNode& node) {
  set_output(node, at::kLong,
             node.op->kind() == OperatorKind::kNextToken ? Shape(at::IntArrayRef()) : Shape());
}

}  // namespace detail

std::vector<Output> gradients(const std::vector<Output>& y, const std::vector<Output>& x,
                              const std::vector<Output>& y_gradients, std::source_location where) {
  const std::string subject = fmt::format("gradients ({})", detail::describe(where));
  if (y.empty()) raise<InvalidArgument>("{}: there is nothing to differentiate", subject);
  if (!y_gradients.empty() && y_gradients.size() != y.size())
    raise<InvalidArgument>("{}: {} gradients are given for {} outputs", subject, y_gradients.size(),
                           y.size());
  for (const auto* list : {&y, &x, &y_gradients}) {
    for (const auto& each : *list) {
      if (!each.defined()) raise<InvalidArgument>("{}: an output is undefined", subject);
      if (each.get()->graph != y.front().get()->graph)
        raise<InvalidArgument>("{}: {} is of another graph than {}", subject, each.name(), y.front().name());
    }
  }
  const auto results = detail::gradients_or_none(y, x, y_gradients, where);
  for (size_t i = 0; i < x.size(); ++i) {
    if (!results[i].defined())
      raise<InvalidArgument>("{}: no way that can be differentiated leads from {} to {}", subject,
                             x[i].name(), y.front().name());
  }
  return results;
}

Node apply_gradients(const optim::Optimizer& optimizer, const std::vector<Output>& gradients,
                     const std::vector<Output>& variables, const Output& lr, std::source_location where) {
  const std::string subject = fmt::format("apply_gradients ({})", detail::describe(where));
  if (variables.empty()) raise<InvalidArgument>("{}: there are no variables", subject);
  if (gradients.size() != variables.size())
    raise<InvalidArgument>("{}: {} gradients are given for {} variables", subject, gradients.size(),
                           variables.size());
  GraphData& graph = *variables.front().get()->graph;
  const std::string rule = optimizer.to_string();
  std::vector<GraphNode*> updates;
  for (size_t i = 0; i < variables.size(); ++i) {
    const Output& variable = variables[i];
    detail::check_updated(variable, subject);
    if (!gradients[i].defined())
      raise<InvalidArgument>("{}: the variable '{}' is given an undefined gradient", subject,
                             variable.node().name());
    GraphNode& node =
        detail::make_beside(variable, "muster::update", variable.node().name() + "/update", where);
    node.arguments = {Argument(variable), Argument(gradients[i]), Argument(rule),
                      lr.defined() ? Argument(lr) : Argument(c10::IValue())};
    updates.push_back(&node);
  }
  GraphNode& all =
      graph.make(detail::Operator::find("muster::group"), "train", /*is_name_given=*/false, where);
  all.control.insert(all.control.end(), updates.begin(), updates.end());
  return Node(&all);
}

Node minimize(const optim::Optimizer& optimizer, const Output& loss, const Output& lr,
              std::source_location where) {
  const auto variables =
      detail::variables_behind(loss, fmt::format("minimize ({})", detail::describe(where)));
  return apply_gradients(optimizer, gradients({loss}, variables, {}, where), variables, lr, where);
}

}  // namespace muster
