#include "muster/sync_replicas.h"

#include <vector>

#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/graph/gradients.h"
#include "muster/monitored_session.h"
#include "muster/optim/rule_text.h"
#include "muster/runtime/replica_coordinator.h"

namespace muster {

namespace {

// A constant on the task of the global step.
Output rate_of_rule(const std::string& rule, const Output& step, std::source_location where) {
  detail::GraphNode& node = detail::make_beside(step, "muster::constant", "sync_replicas/lr", where);
  node.arguments = {
      Argument(at::scalar_tensor(detail::parse_rule(rule)->lr(), at::TensorOptions(at::kDouble)))};
  detail::set_output(node, at::kDouble, Shape(at::IntArrayRef()));
  return {&node, 0};
}

}  // namespace

Output minimize_synchronously(Graph& graph, const optim::Optimizer& optimizer, const Output& loss,
                              const SyncReplicas& sync, const Output& lr, std::source_location where) {
  const std::string subject = fmt::format("minimize_synchronously ({})", detail::describe(where));
  const auto variables = detail::variables_behind(loss, subject);
  for (const auto& variable : variables) detail::check_updated(variable, subject);
  if (loss.get()->graph != &graph.data())
    detail::raise<InvalidArgument>("{}: {} is of another graph", subject, loss.name());
  try {
    static_cast<void>(detail::replica_options(sync.total_num_replicas, sync.replicas_to_aggregate));
  } catch (const InvalidArgument& error) {
    detail::raise<InvalidArgument>("{}: {}", subject, error.what());
  }
  if (sync.replica < 0 || sync.replica >= sync.total_num_replicas)
    detail::raise<InvalidArgument>("{}: this is replica {}; expected 0 to {}", subject, sync.replica,
                                   sync.total_num_replicas - 1);

  const auto computed = gradients({loss}, variables, {}, where);
  const std::string rule = optimizer.to_string();
  const int64_t replica = sync.replica;
  const int64_t replicas = sync.total_num_replicas;
  const int64_t aggregate = sync.replicas_to_aggregate;
  const Output step = global_step(graph, where);

  // Its name, which is the same in the graphs of all replicas, names what they share.
  detail::GraphNode& enter = detail::make_beside(step, "muster::next_token", "sync_replicas/enter", where);
  const std::string group = enter.name;
  enter.arguments = {Argument(step),     Argument(c10::IValue()), Argument(replica),
                     Argument(replicas), Argument(aggregate),     Argument(group)};
  detail::set_replica_output(enter);

  std::vector<detail::GraphNode*> kept;
  for (size_t i = 0; i < variables.size(); ++i) {
    const std::string name = variables[i].node().name() + "/accumulate";
    kept.push_back(&detail::make_beside(variables[i], "muster::accumulate", name, where));
    kept.back()->arguments = {Argument(variables[i]), Argument(computed[i]), Argument(replica),
                              Argument(group)};
  }
  const Output rate = lr.defined() ? lr : rate_of_rule(rule, step, where);
  detail::GraphNode& push = detail::make_beside(step, "muster::push", "sync_replicas/push", where);
  push.arguments = {Argument(step),     Argument(rate),      Argument(replica),
                    Argument(replicas), Argument(aggregate), Argument(group)};
  push.control.insert(push.control.end(), kept.begin(), kept.end());
  detail::set_replica_output(push);

  std::vector<detail::GraphNode*> updates;
  for (const auto& variable : variables) {
    const std::string name = variable.node().name() + "/carry_out";
    updates.push_back(&detail::make_beside(variable, "muster::carry_out", name, where));
    updates.back()->arguments = {Argument(variable), Argument(Output(&push, 0)), Argument(rule),
                                 Argument(group)};
  }
  detail::GraphNode& next = detail::make_beside(step, "muster::next_token", "sync_replicas/step", where);
  next.arguments = {Argument(step),     Argument(Output(&push, 0)), Argument(replica),
                    Argument(replicas), Argument(aggregate),        Argument(group)};
  next.control.insert(next.control.end(), updates.begin(), updates.end());
  detail::set_replica_output(next);
  return {&next, 0};
}

}  // namespace muster
