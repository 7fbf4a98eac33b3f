// How a batch is cut into micro-batches: what the loss is made of is copied for each of them, with parts of
// the batch for its placeholders, and the schedule becomes control dependencies. On stage s of p, counted
// from 0, the forward pass of micro-batch i runs after the backward pass of micro-batch i - (p - s), so that
// no stage is further ahead than it has to be for the others to have work. What each task does next then
// follows from what has come (room runtime).
//
// Zero bubble. Of some micro-batches the backward pass ends at the outputs of the nodes that take parameters;
// with the gradients of these, each such node gives those of its parameters, as a filler. Stage s does so for
// the first s micro-batches, so that the stage before has its gradients sooner when the pipeline begins, and
// for the last p - 1, so that all have theirs sooner when it ends. These fill the gaps of the end. Any other
// backward pass is whole: what is put off is computed of values that have left the caches.

#include "muster/pipeline.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/task_name.h"
#include "muster/graph/batch_reduction.h"
#include "muster/graph/gradients.h"
#include "muster/graph/pipeline_schedule.h"
#include "muster/graph/placer.h"

namespace muster {

namespace {

using detail::BatchReduction;
using detail::GraphData;
using detail::GraphNode;
using detail::OperatorKind;
using detail::raise;

// The nodes that an output needs, in the order of their numbers.
std::vector<GraphNode*> nodes_behind(const Output& output) {
  std::unordered_set<int64_t> seen;
  std::vector<GraphNode*> found;
  std::vector<GraphNode*> left = {output.get()};
  while (!left.empty()) {
    GraphNode* node = left.back();
    left.pop_back();
    if (!seen.insert(node->id).second) continue;
    found.push_back(node);
    node->each_input([&left](const Output& input) { left.push_back(input.get()); });
    left.insert(left.end(), node->control.begin(), node->control.end());
  }
  std::sort(found.begin(), found.end(), [](const GraphNode* a, const GraphNode* b) { return a->id < b->id; });
  return found;
}

// Throws InvalidArgument where micro-batches would train something else than the batch.
void check_loss(const Output& loss, const std::vector<GraphNode*>& nodes, bool is_sum,
                const std::string& subject) {
  const auto reduction = detail::batch_reduction(loss, nodes);
  const bool says_otherwise =
      is_sum ? reduction.kind == BatchReduction::kMean : reduction.kind == BatchReduction::kSum;
  if (says_otherwise)
    raise<InvalidArgument>(
        "{}: {} is a {} over the batch, and PipelineOptions::loss_is_sum says otherwise: set it to {}",
        subject, loss.name(), is_sum ? "mean" : "sum", !is_sum);
  if (reduction.kind == BatchReduction::kNeither)
    raise<InvalidArgument>(
        "{}: {} is neither a mean nor a sum over the batch, so that micro-batches would "
        "train something else: {}",
        subject, loss.name(), reduction.reason);
  if (reduction.kind == BatchReduction::kUnknown)
    detail::log_warning(
        "{}: it can't be seen whether {} is a mean or a sum over the batch: it is taken for a {}, as "
        "PipelineOptions::loss_is_sum says",
        subject, loss.name(), is_sum ? "sum" : "mean");
}

class PipelineBuilder {
 public:
  PipelineBuilder(const Output& loss, const PipelineOptions& options, std::source_location where)
      : graph_(*loss.get()->graph),
        loss_(loss),
        options_(options),
        where_(where),
        micro_batches_(static_cast<size_t>(options.micro_batches)),
        nodes_(nodes_behind(loss)) {}

  Pipeline build(const optim::Optimizer& optimizer, const Output& lr) {
    const Scope restored([this, scope = std::exchange(graph_.scope, ""),
                          devices = std::exchange(graph_.devices, {}),
                          beside = std::exchange(graph_.beside, nullptr)] {
      graph_.scope = scope;
      graph_.devices = devices;
      graph_.beside = beside;
    });
    find_stages();
    if (stages_.size() == 1)
      detail::log_warning(
          "minimize_in_pipeline ({}): all that depends on the batch is on one device, so that there is one "
          "stage; "
          "place() comes before it",
          detail::describe(where_));
    split_batches();
    find_parameters();
    scale_ = constant(options_.loss_is_sum ? 1.0 : 1.0 / static_cast<double>(micro_batches_));
    Output total;
    const auto add_loss = [&](const Output& loss) {
      total = total.defined() ? add("aten::add.Tensor", {total, loss}, stages_.back()) : loss;
    };
    const bool all_forward_first = options_.schedule == PipelineSchedule::kGPipe;
    for (size_t i = 0; i < micro_batches_; ++i) {
      copies_.push_back(copied(i));
      add_loss(copies_.back().loss);
      if (!all_forward_first) differentiate(i);
    }
    for (size_t i = 0; i < micro_batches_ && all_forward_first; ++i) differentiate(i);
    pipeline_.loss = add("aten::mul.Tensor", {total, scale_}, stages_.back());
    pipeline_.train = apply_gradients(optimizer, summed(), variables_, lr, where_);
    return std::move(pipeline_);
  }

 private:
  struct Copy {
    std::unordered_map<const GraphNode*, GraphNode*> nodes;
    std::unordered_map<const GraphNode*, Output> replaced;  // placeholders, and variables that are read again
    std::vector<std::vector<GraphNode*>> entries;           // of each stage: nodes that take nothing of it
    std::vector<GraphNode*> last;                           // of each stage
    Output loss;
    std::vector<GraphNode*> backward;  // of each stage: the last node of its backward pass; null: it has none
    std::vector<GraphNode*> filler;    // likewise of what was put off
  };

  // A gradient of a variable, and of which filler it is; 0: of none.
  struct Contribution {
    Output gradient;
    int64_t filler = 0;
  };

  // A node that takes parameters, or what is computed of nothing but parameters.
  struct ParameterUser {
    const GraphNode* node = nullptr;
    std::vector<Output> parameters;
  };

  GraphNode& make(const detail::OperatorPtr& op, const std::string& name, const std::string& device) {
    GraphNode& made = graph_.make(op, name, /*is_name_given=*/false, where_);
    made.device = device;
    return made;
  }

  Output add(const char* op, const std::vector<Argument>& arguments, const std::string& device,
             const std::string& name = "pipeline") {
    GraphNode& made = make(detail::Operator::find(op), name, device);
    made.arguments = match_arguments(*made.op, arguments, {}).arguments;
    infer_outputs(made);
    return {&made, 0};
  }

  Output constant(double value) {
    GraphNode& made = make(detail::Operator::find("muster::constant"), "pipeline/scale", stages_.back());
    made.arguments = {
        Argument(at::scalar_tensor(value, at::TensorOptions(loss_.dtype().value_or(at::kFloat))))};
    detail::set_output(made, loss_.dtype().value_or(at::kFloat), Shape(at::IntArrayRef()));
    return {&made, 0};
  }

  size_t stage_of(const std::string& device) {
    const auto found = std::find(stages_.begin(), stages_.end(), device);
    if (found == stages_.end()) stages_.push_back(device);
    return static_cast<size_t>(std::find(stages_.begin(), stages_.end(), device) - stages_.begin());
  }

  // Stages are in the order in which the batch comes to them.
  void find_stages() {
    for (const auto* node : nodes_) {
      bool depends = detail::is_of_batches(*node);
      std::optional<size_t> latest;
      node->each_input([&](const Output& input) {
        if (!depends_.contains(input.get())) return;
        depends = true;
        if (!detail::is_of_batches(*input.get()))
          latest = std::max(latest.value_or(0), stage_of_.at(input.get()));
      });
      std::string device = placing_nodes_.of(*node).device;
      if (depends) depends_.insert(node);
      if (device.empty() && latest) device = stages_[*latest];
      if (depends && !detail::is_of_batches(*node)) stage_of_[node] = stage_of(device);
      devices_[node] = device;
    }
    if (stages_.empty())
      raise<InvalidArgument>(
          "minimize_in_pipeline ({}): {} depends on no placeholder whose first dimension is the batch "
          "(muster::kBatch)",
          detail::describe(where_), loss_.name());
  }

  // A batch of m N samples is seen as m batches of N.
  void split_batches() {
    for (auto* node : nodes_) {
      if (!detail::is_of_batches(*node)) continue;
      std::string device = stages_.front();
      for (const auto* user : nodes_) {
        bool takes = false;
        user->each_input([&](const Output& input) { takes = takes || input.get() == node; });
        if (!takes) continue;
        device = devices_.at(user);
        break;
      }
      GraphNode& whole = make(node->op, node->name + "/batches", node->device);
      std::vector<Size> sizes = node->outputs.front().shape.sizes();
      sizes.front().batches = static_cast<int64_t>(micro_batches_);
      const auto dtype = node->outputs.front().dtype;
      whole.arguments = node->arguments;
      whole.arguments[1] = Argument(detail::shape_value(Shape(sizes)));
      detail::set_output(whole, dtype, Shape(sizes));
      pipeline_.batches.emplace_back(Output(node, 0), Output(&whole, 0));
      const std::vector<int64_t> parts = {static_cast<int64_t>(micro_batches_), -1};
      parts_[node] = add("aten::unflatten.int", {Output(&whole, 0), int64_t{0}, parts}, device,
                         node->name + "/micro_batches");
    }
  }

  void find_parameters() {
    variables_ =
        detail::variables_behind(loss_, fmt::format("minimize_in_pipeline ({})", detail::describe(where_)));
    std::unordered_set<const GraphNode*> trained;  // variables, and what comes of nothing but them
    for (const auto& variable : variables_) trained.insert(variable.get());
    for (const auto* node : nodes_) {
      ParameterUser user{.node = node};
      node->each_input([&](const Output& input) {
        if (trained.contains(input.get()) && detail::may_have_gradient(input) &&
            std::find(user.parameters.begin(), user.parameters.end(), input) == user.parameters.end())
          user.parameters.push_back(input);
      });
      if (user.parameters.empty()) continue;
      if (depends_.contains(node)) {
        users_.push_back(std::move(user));
      } else {
        trained.insert(node);
      }
    }
  }

  // ---- Forward.

  Copy copied(size_t number) {
    Copy copy;
    copy.entries.resize(stages_.size());
    copy.last.resize(stages_.size());
    copy.backward.resize(stages_.size());
    copy.filler.resize(stages_.size());
    for (const auto& [node, parts] : parts_)
      copy.replaced[node] = add("aten::select.int", {parts, int64_t{0}, static_cast<int64_t>(number)},
                                parts.get()->device, fmt::format("micro_{}/{}", number, node->name));
    if (number > 0) read_again(copy);
    for (auto* node : nodes_) {
      const auto kind = node->op->kind();
      if (kind == OperatorKind::kPlaceholder || kind == OperatorKind::kConstant ||
          kind == OperatorKind::kVariable)
        continue;
      copy_node(copy, number, *node);
    }
    copy.loss = local(copy, loss_);
    return copy;
  }

  // What the micro-batch before has given a variable, as running statistics.
  void read_again(Copy& copy) {
    std::map<GraphNode*, std::vector<GraphNode*>> changes;
    for (auto* node : nodes_) {
      for (size_t i = 0; i < node->arguments.size(); ++i) {
        if (node->op->writes(i))
          changes[node->arguments[i].outputs().front().get()].push_back(copies_.back().nodes.at(node));
      }
    }
    for (const auto& [variable, before] : changes) {
      GraphNode& made = make(detail::Operator::find("muster::read"), variable->name + "/read", "");
      made.arguments = {Argument(Output(variable, 0))};
      made.colocated = variable;
      made.control.insert(made.control.end(), before.begin(), before.end());
      made.outputs = variable->outputs;
      copy.replaced[variable] = Output(&made, 0);
    }
  }

  static Output local(const Copy& copy, const Output& output) {
    if (!output.defined()) return output;
    if (const auto found = copy.replaced.find(output.get()); found != copy.replaced.end())
      return found->second;
    const auto found = copy.nodes.find(output.get());
    return found == copy.nodes.end() ? output : Output(found->second, output.index());
  }

  void copy_node(Copy& copy, size_t number, GraphNode& node) {
    std::vector<Argument> arguments;
    bool is_entry = depends_.contains(&node);
    for (size_t i = 0; i < node.arguments.size(); ++i) {
      const Argument& argument = node.arguments[i];
      if (argument.is_value() || node.op->writes(i)) {
        arguments.push_back(argument);
        continue;
      }
      std::vector<Output> outputs;
      for (const auto& output : argument.outputs()) {
        outputs.push_back(local(copy, output));
        const auto from = output.defined() ? stage_of_.find(output.get()) : stage_of_.end();
        if (from != stage_of_.end() && is_entry && from->second == stage_of_.at(&node)) is_entry = false;
      }
      arguments.push_back(argument.is_list() ? Argument(std::move(outputs)) : Argument(outputs.front()));
    }
    GraphNode& made = make(node.op, fmt::format("micro_{}/{}", number, node.name), devices_.at(&node));
    made.arguments = std::move(arguments);
    made.outputs = node.outputs;
    made.where = node.where;
    for (auto* before : node.control) {
      const auto found = copy.nodes.find(before);
      made.control.push_back(found == copy.nodes.end() ? before : found->second);
    }
    if (node.colocated != nullptr) {
      const auto found = copy.nodes.find(node.colocated);
      made.colocated = found == copy.nodes.end() ? node.colocated : found->second;
    }
    copy.nodes.emplace(&node, &made);
    if (!depends_.contains(&node)) return;
    const size_t stage = stage_of_.at(&node);
    copy.last[stage] = &made;
    if (!is_entry) return;
    if (options_.schedule == PipelineSchedule::kGPipe) return;
    const size_t ahead = stages_.size() - stage;
    if (number >= ahead) run_after(made, copies_[number - ahead].backward[stage]);
    if (const auto before = place_of(stage).put_off_until(number))
      run_after(made, copies_[*before].filler[stage]);
  }

  static void run_after(GraphNode& node, GraphNode* before) {
    if (before != nullptr) node.control.push_back(before);
  }

  // ---- Backward.

  void differentiate(size_t number) {
    Copy& copy = copies_[number];
    const size_t first = graph_.nodes.size();
    std::vector<Output> wanted = variables_;
    detail::LeftOut left_out;
    for (const auto& user : users_) {
      if (!is_put_off(number, stage_of_.at(user.node))) continue;
      GraphNode& node = *copy.nodes.at(user.node);
      for (const auto& parameter : user.parameters) left_out.emplace(&node, local(copy, parameter).get());
      for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i) {
        if (detail::may_have_gradient({&node, i})) wanted.emplace_back(&node, i);
      }
    }
    const auto gradients = detail::gradients_or_none({copy.loss}, wanted, {scale_}, where_, left_out);
    note_last(copy.backward, first);
    if (options_.schedule == PipelineSchedule::kGPipe) {
      for (size_t id = first; id < graph_.nodes.size(); ++id) {
        GraphNode& node = graph_.nodes[id];
        const auto stage = std::find(stages_.begin(), stages_.end(), node.device) - stages_.begin();
        if (node.op->kind() == OperatorKind::kGradient && stage < static_cast<int64_t>(stages_.size()))
          run_after(node, copies_.back().last[static_cast<size_t>(stage)]);
      }
    }
    for (size_t i = 0; i < variables_.size(); ++i) {
      if (gradients[i].defined()) contribute(variables_[i], gradients[i]);
    }
    fill(number, wanted, gradients);
  }

  // Whether a stage computes the gradients of its parameters for this micro-batch when it has nothing else to
  // do.
  bool is_put_off(size_t number, size_t stage) const {
    return options_.schedule == PipelineSchedule::kZeroBubble && place_of(stage).is_put_off(number);
  }

  detail::PipelinePlace place_of(size_t stage) const {
    return {.stage = stage, .stages = stages_.size(), .micro_batches = micro_batches_};
  }

  // The gradients of parameters that were put off, node by node. Behind the variables, `ends` are the outputs
  // of the nodes that take them.
  void fill(size_t number, const std::vector<Output>& ends, const std::vector<Output>& gradients) {
    Copy& copy = copies_[number];
    const size_t first = graph_.nodes.size();
    size_t next = variables_.size();
    filler_ = static_cast<int64_t>(number) + 1;
    for (const auto& user : users_) {
      if (!is_put_off(number, stage_of_.at(user.node))) continue;
      GraphNode& node = *copy.nodes.at(user.node);
      std::vector<Output> given(node.outputs.size());
      for (; next < ends.size() && ends[next].get() == &node; ++next)
        given[static_cast<size_t>(ends[next].index())] = gradients[next];
      if (std::none_of(given.begin(), given.end(), [](const Output& each) { return each.defined(); }))
        continue;
      std::vector<Output> parameters;
      for (const auto& parameter : user.parameters) parameters.push_back(local(copy, parameter));
      const auto found = detail::node_gradients(node, given, parameters, where_);
      for (size_t i = 0; i < parameters.size(); ++i) {
        if (!found[i].defined()) continue;
        if (parameters[i].get()->op->kind() == OperatorKind::kVariable) {
          contribute(parameters[i], found[i]);
          continue;
        }
        const auto behind = detail::gradients_or_none({parameters[i]}, variables_, {found[i]}, where_);
        for (size_t k = 0; k < variables_.size(); ++k) {
          if (behind[k].defined()) contribute(variables_[k], behind[k]);
        }
      }
    }
    for (size_t id = first; id < graph_.nodes.size(); ++id) graph_.nodes[id].filler = filler_;
    note_last(copy.filler, first);
    filler_ = 0;
  }

  // The last gradients that were made for each stage since.
  void note_last(std::vector<GraphNode*>& last, size_t first) {
    for (size_t id = first; id < graph_.nodes.size(); ++id) {
      GraphNode& node = graph_.nodes[id];
      if (node.op->kind() != OperatorKind::kGradient) continue;
      const auto stage = std::find(stages_.begin(), stages_.end(), node.device);
      if (stage != stages_.end()) last[static_cast<size_t>(stage - stages_.begin())] = &node;
    }
  }

  void contribute(const Output& variable, const Output& gradient) {
    contributions_[{variable.get()->id, gradient.get()->device}].push_back({gradient, filler_});
  }

  // On one task, in the order in which they come: those that were put off are the last.
  Output summed(const Output& variable, std::vector<Contribution> contributions) {
    std::stable_partition(contributions.begin(), contributions.end(),
                          [](const Contribution& each) { return each.filler == 0; });
    Output sum;
    for (const auto& [gradient, filler] : contributions) {
      if (!sum.defined()) {
        sum = gradient;
        continue;
      }
      GraphNode& made = make(detail::Operator::find("aten::add.Tensor"),
                             fmt::format("gradients/{}/sum", variable.get()->name), gradient.get()->device);
      made.arguments = match_arguments(*made.op, {sum, gradient}, {}).arguments;
      made.outputs = variable.get()->outputs;
      made.filler = filler;
      sum = Output(&made, 0);
    }
    return sum;
  }

  // A variable that several stages use is summed up on each of them first.
  std::vector<Output> summed() {
    std::vector<Output> all;
    for (const auto& variable : variables_) {
      Output total;
      for (const auto& [key, contributions] : contributions_) {
        if (key.first != variable.get()->id) continue;
        const Output sum = summed(variable, contributions);
        total = total.defined()
                    ? add("aten::add.Tensor", {total, sum}, placing_nodes_.of(*variable.get()).device)
                    : sum;
      }
      all.push_back(total);
    }
    return all;
  }

  GraphData& graph_;
  const Output loss_;
  const PipelineOptions options_;
  const std::source_location where_;
  const size_t micro_batches_;
  const std::vector<GraphNode*> nodes_;  // that the loss needs

  std::unordered_set<const GraphNode*> depends_;  // on the batch
  std::unordered_map<const GraphNode*, std::string> devices_;
  std::unordered_map<const GraphNode*, size_t> stage_of_;  // of those that depend on the batch
  std::vector<std::string> stages_;                        // their devices
  std::map<GraphNode*, Output> parts_;                     // of placeholders: all micro-batches
  std::vector<Output> variables_;
  std::vector<ParameterUser> users_;
  detail::PlacingNodes placing_nodes_;
  Output scale_;
  std::vector<Copy> copies_;
  int64_t filler_ = 0;  // what is made now belongs to
  std::map<std::pair<int64_t, std::string>, std::vector<Contribution>>
      contributions_;  // by variable and device
  Pipeline pipeline_;
};

}  // namespace

Output Pipeline::batch(const Output& placeholder) const {
  for (const auto& [small, whole] : batches) {
    if (small == placeholder) return whole;
  }
  raise<InvalidArgument>("the pipeline does not cut {} into micro-batches",
                         placeholder.defined() ? placeholder.name() : "an undefined output");
}

void place(Graph& graph, const std::vector<std::pair<std::string, std::string>>& devices) {
  std::vector<bool> fits(devices.size(), false);
  std::vector<std::string> names;
  for (const auto& [pattern, device] : devices) names.push_back(detail::TaskName::parse(device).to_string());
  for (auto& node : graph.data().nodes) {
    for (size_t i = 0; i < devices.size(); ++i) {
      if (fnmatch(devices[i].first.c_str(), node.name.c_str(), 0) != 0) continue;
      fits[i] = true;
      node.device = names[i];
      break;
    }
  }
  ++graph.data().placements;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!fits[i])
      raise<InvalidArgument>("place: the pattern '{}' fits no node that is left to it", devices[i].first);
  }
}

Pipeline minimize_in_pipeline(const optim::Optimizer& optimizer, const Output& loss,
                              const PipelineOptions& options, const Output& lr, std::source_location where) {
  const std::string subject = fmt::format("minimize_in_pipeline ({})", detail::describe(where));
  if (!loss.defined()) raise<InvalidArgument>("{}: the loss is undefined", subject);
  if (options.micro_batches < 1)
    raise<InvalidArgument>("{}: there are {} micro-batches; expected 1 or more", subject,
                           options.micro_batches);
  if (loss.shape().known() && !loss.shape().sizes().empty())
    raise<InvalidArgument>("{}: the loss, {}, has the shape {}; expected a scalar, over the whole batch",
                           subject, loss.name(), loss.shape().to_string());
  check_loss(loss, nodes_behind(loss), options.loss_is_sum, subject);
  return PipelineBuilder(loss, options, where).build(optimizer, lr);
}

}  // namespace muster
