// How functions become bodies (graph_body.h). A function adds nodes to the graph, as all functions do. Those
// that its results need are copied into a body; what they take from outside, variables and constant tensors
// too, becomes an input of it. The nodes themselves stay, and nobody needs them.

#include "muster/control_flow.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/graph/graph_body.h"

namespace muster {

namespace {

using detail::GraphBody;
using detail::GraphData;
using detail::GraphNode;
using detail::info_of;
using detail::OperatorKind;
using detail::raise;

using PlaceInGraph = std::pair<int64_t, int>;  // node, index

PlaceInGraph place_of(const Output& output) {
  return {output.get()->id, output.index()};
}

// What a function has added.
struct Added {
  int64_t first = 0;  // the number of its first node
  std::vector<Output> parameters;
  std::vector<Output> results;
};

class BodyBuilder {
 public:
  BodyBuilder(GraphData& graph, const char* op, std::source_location where)
      : graph_(graph), where_(where), subject_(fmt::format("{} ({})", op, detail::describe(where))) {}

  const std::string& subject() const { return subject_; }

  void check(const Output& output, const char* what) const {
    if (!output.defined()) raise<InvalidArgument>("{}: {} is an undefined output", subject_, what);
    if (output.get()->graph != &graph_)
      raise<InvalidArgument>("{}: {} is of another graph", subject_, output.name());
    if (info_of(output).type->kind() != c10::TypeKind::TensorType)
      raise<InvalidArgument>("{}: {} is no tensor", subject_, output.name());
  }

  /// Calls a function in a scope of its own, with placeholders like `parameters`.
  Added call(const std::string& scope, const std::vector<detail::OutputInfo>& parameters,
             const std::function<std::vector<Output>(const std::vector<Output>&)>& function) {
    const Scope restored([this, outer = graph_.scope] { graph_.scope = outer; });
    graph_.scope += scope + "/";
    Added added{.first = static_cast<int64_t>(graph_.nodes.size())};
    for (const auto& info : parameters) {
      GraphNode& node =
          graph_.make(detail::Operator::find("muster::placeholder"), "parameter", false, where_);
      node.arguments = {dtype_of(info), Argument(c10::IValue())};
      node.outputs = {info};
      added.parameters.emplace_back(&node, 0);
    }
    added.results = function(added.parameters);
    for (const auto& result : added.results) check(result, "a result");
    note_needed(added);
    return added;
  }

  /// What all that was called takes from outside.
  const std::vector<Output>& captured() const { return captured_; }

  std::string text_of(const Added& added) const {
    GraphBody body;
    GraphData& inside = body.graph.data();
    std::map<PlaceInGraph, Output> values;
    const auto add_input = [&](const Output& outer) {
      GraphNode& node =
          inside.make(detail::Operator::find("muster::placeholder"), outer.get()->name, false, where_);
      node.arguments = {dtype_of(info_of(outer)), Argument(c10::IValue())};
      node.outputs = {info_of(outer)};
      values.emplace(place_of(outer), Output(&node, 0));
    };
    for (const auto& parameter : added.parameters) add_input(parameter);
    for (const auto& outer : captured_) add_input(outer);
    for (const int64_t id : needed_.at(added.first)) {
      const GraphNode& node = graph_.nodes[static_cast<size_t>(id)];
      GraphNode& copy = inside.make(node.op, node.name, false, where_);
      copy.where = node.where;
      copy.outputs = node.outputs;
      for (const auto& argument : node.arguments) copy.arguments.push_back(inner(argument, values));
      for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i)
        values.emplace(PlaceInGraph{id, i}, Output(&copy, i));
    }
    for (const auto& result : added.results) body.results.push_back(values.at(place_of(result)));
    return body.to_text();
  }

  /// The node that stands for all of it.
  std::vector<Output> add(const char* op, const Argument& first, const Added& one, const Added& other) {
    const std::string name = std::string(op).substr(std::string(op).find("::") + 2);
    GraphNode& node = graph_.make(detail::Operator::find(op), name, /*is_name_given=*/false, where_);
    node.arguments = {first, Argument(captured_), Argument(text_of(one)), Argument(text_of(other))};
    detail::set_results_of_bodies(node, subject_);
    std::vector<Output> results;
    for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i) results.emplace_back(&node, i);
    return results;
  }

 private:
  static Argument dtype_of(const detail::OutputInfo& info) {
    return info.dtype ? Argument(c10::IValue(static_cast<int64_t>(*info.dtype))) : Argument(c10::IValue());
  }

  static Argument inner(const Argument& argument, const std::map<PlaceInGraph, Output>& values) {
    if (argument.is_value()) return argument;
    std::vector<Output> outputs;
    for (const auto& output : argument.outputs())
      outputs.push_back(output.defined() ? values.at(place_of(output)) : Output());
    if (argument.is_list()) return outputs;
    return outputs.front();
  }

  // What has its value before the branch or loop runs.
  static bool is_outside(const Added& added, const GraphNode& node) {
    const bool is_constant_tensor =
        node.op->kind() == OperatorKind::kConstant && node.arguments[0].value().isTensor();
    return node.id < added.first || node.op->kind() == OperatorKind::kVariable || is_constant_tensor;
  }

  void note_needed(const Added& added) {
    std::set<int64_t> seen;
    std::vector<GraphNode*> left;
    const auto need = [&](const Output& output) {
      if (!is_outside(added, *output.get())) {
        left.push_back(output.get());
        return;
      }
      if (info_of(output).type->kind() != c10::TypeKind::TensorType)
        raise<InvalidArgument>(
            "{}: what is inside takes {}, which is computed outside and no tensor: compute it inside",
            subject_, output.name());
      if (std::find(captured_.begin(), captured_.end(), output) == captured_.end())
        captured_.push_back(output);
    };
    for (const auto& result : added.results) need(result);
    while (!left.empty()) {
      GraphNode* node = left.back();
      left.pop_back();
      if (!seen.insert(node->id).second) continue;
      if (std::any_of(added.parameters.begin(), added.parameters.end(),
                      [node](const Output& parameter) { return parameter.get() == node; })) {
        seen.erase(node->id);
        continue;
      }
      if (!node->op->is_differentiable() && node->op->kind() != OperatorKind::kConstant)
        raise<InvalidArgument>("{}: {} can't be inside: it has to happen, or not, whatever branch is taken",
                               subject_, node->describe());
      node->each_input(need);
      for (auto* before : node->control) {
        if (before->id >= added.first && before->op->is_differentiable()) left.push_back(before);
      }
    }
    needed_[added.first] = std::move(seen);
  }

  GraphData& graph_;
  const std::source_location where_;
  const std::string subject_;
  std::vector<Output> captured_;
  std::map<int64_t, std::set<int64_t>> needed_;  // nodes of each function, by its first
};

}  // namespace

std::vector<Output> cond(const Output& predicate, const std::function<std::vector<Output>()>& then_branch,
                         const std::function<std::vector<Output>()>& else_branch,
                         std::source_location where) {
  if (!predicate.defined())
    raise<InvalidArgument>("cond ({}): the predicate is an undefined output", detail::describe(where));
  BodyBuilder builder(*predicate.get()->graph, "cond", where);
  builder.check(predicate, "the predicate");
  const Added chosen = builder.call("cond/then", {}, [&](const auto&) { return then_branch(); });
  const Added otherwise = builder.call("cond/else", {}, [&](const auto&) { return else_branch(); });
  return builder.add("muster::cond", Argument(predicate), chosen, otherwise);
}

std::vector<Output> while_loop(const std::vector<Output>& initial,
                               const std::function<Output(const std::vector<Output>&)>& condition,
                               const std::function<std::vector<Output>(const std::vector<Output>&)>& body,
                               std::source_location where) {
  if (initial.empty() || !initial.front().defined())
    raise<InvalidArgument>("while_loop ({}): there are no loop variables", detail::describe(where));
  std::vector<detail::OutputInfo> parameters;
  for (const auto& each : initial) {
    BodyBuilder(*initial.front().get()->graph, "while_loop", where).check(each, "a loop variable");
    parameters.push_back(info_of(each));
  }
  // A variable whose size the body changes has no size that is known.
  while (true) {
    BodyBuilder builder(*initial.front().get()->graph, "while_loop", where);
    const Added test = builder.call("while_loop/condition", parameters,
                                    [&](const auto& variables) { return std::vector{condition(variables)}; });
    const Added step = builder.call("while_loop/body", parameters, body);
    if (step.results.size() != initial.size())
      raise<InvalidArgument>("{}: its body gives {} results for {} loop variables", builder.subject(),
                             step.results.size(), initial.size());
    bool changes = false;
    for (size_t i = 0; i < initial.size(); ++i) {
      auto& info = parameters[i];
      const auto dtype = step.results[i].dtype();
      if (info.dtype && dtype && *dtype != *info.dtype)
        raise<InvalidArgument>(
            "{}: its body makes {} of loop variable {}, which is {}: a loop variable keeps its type",
            builder.subject(), c10::toString(*dtype), i, c10::toString(*info.dtype));
      if (!info.shape.known() || info.shape == step.results[i].shape()) continue;
      info.shape = Shape();
      info.examples = std::nullopt;
      changes = true;
    }
    if (!changes) return builder.add("muster::while_loop", Argument(initial), test, step);
  }
}

}  // namespace muster
