#include "muster/stages.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "muster/base/error.h"
#include "muster/base/task_name.h"
#include "muster/graph/signature.h"
#include "muster/runtime/executor.h"
#include "muster/runtime/program.h"

namespace muster {

namespace {

using detail::GraphNode;
using detail::raise;
using Nanoseconds = std::chrono::nanoseconds;

constexpr int kMeasured = 3;  // times; the shortest counts, after one that warms up

struct PassTimes {
  Nanoseconds forward{0};
  Nanoseconds backward{0};

  Nanoseconds both() const { return forward + backward; }
};

// Runs the nodes of a graph one by one, on values that it keeps.
class NodeTimer {
 public:
  void give(const Output& output, const at::Tensor& value) { values_[place_of(output)] = value; }

  void initialize(const std::vector<GraphNode*>& initializers) {
    detail::Signature signature;
    for (auto* node : initializers) signature.targets.emplace_back(node);
    detail::Executor(
        std::make_shared<detail::Program>(signature, container_, detail::CompileOptions{.is_body = true}))
        .call({});
  }

  PassTimes measure(GraphNode& node) {
    detail::Signature signature;
    std::vector<c10::IValue> inputs;
    node.each_input([&](const Output& input) {
      if (std::find(signature.feeds.begin(), signature.feeds.end(), input) != signature.feeds.end()) return;
      signature.feeds.push_back(input);
      inputs.push_back(leaf_of(values_.at(place_of(input))));
    });
    for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i) signature.fetches.emplace_back(&node, i);
    if (signature.fetches.empty()) return {};
    // Control dependencies are of no use to a node alone.
    const auto control = std::exchange(node.control, {});
    detail::Executor executor(std::make_shared<detail::Program>(
        signature, container_, detail::CompileOptions{.fold_constants = false, .is_body = true}));
    node.control = control;
    PassTimes best{Nanoseconds::max(), Nanoseconds::max()};
    std::vector<c10::IValue> results;
    for (int round = 0; round <= kMeasured; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      results = executor.call(inputs);
      const auto middle = std::chrono::steady_clock::now();
      differentiate(results, inputs);
      const auto end = std::chrono::steady_clock::now();
      if (round == 0) continue;
      best.forward = std::min(best.forward, Nanoseconds(middle - begin));
      best.backward = std::min(best.backward, Nanoseconds(end - middle));
    }
    for (size_t i = 0; i < results.size(); ++i)
      values_[place_of(signature.fetches[i])] =
          results[i].isTensor() ? c10::IValue(results[i].toTensor().detach()) : results[i];
    return best;
  }

 private:
  using Place = std::pair<const GraphNode*, int>;

  static Place place_of(const Output& output) { return {output.get(), output.index()}; }

  static c10::IValue leaf_of(const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().is_floating_point())
      return value;
    return value.toTensor().detach().requires_grad_();
  }

  static void differentiate(const std::vector<c10::IValue>& results, const std::vector<c10::IValue>& inputs) {
    torch::autograd::variable_list roots;
    torch::autograd::variable_list leaves;
    for (const auto& result : results) {
      if (result.isTensor() && result.toTensor().requires_grad()) roots.push_back(result.toTensor());
    }
    for (const auto& input : inputs) {
      if (input.isTensor() && input.toTensor().requires_grad()) leaves.push_back(input.toTensor());
    }
    if (roots.empty() || leaves.empty()) return;
    torch::autograd::variable_list ones;
    for (const auto& root : roots) ones.push_back(at::ones_like(root));
    torch::autograd::grad(roots, leaves, ones, /*retain_graph=*/false, /*create_graph=*/false,
                          /*allow_unused=*/true);
  }

  detail::Container container_;
  std::map<Place, c10::IValue> values_;
};

// Where each part begins, so that the largest sum is as small as it can be; no part is empty.
std::vector<size_t> cut(const std::vector<Nanoseconds>& times, size_t parts) {
  const auto begins = [&](Nanoseconds limit) {
    std::vector<size_t> found = {0};
    Nanoseconds sum{0};
    for (size_t i = 0; i < times.size(); ++i) {
      const size_t parts_left = parts - found.size();
      const bool must = times.size() - i == parts_left;  // one node for each part that is left
      if (i > found.back() && parts_left > 0 && (must || sum + times[i] > limit)) {
        found.push_back(i);
        sum = Nanoseconds(0);
      }
      sum += times[i];
    }
    return found;
  };
  const auto largest = [&](const std::vector<size_t>& found) {
    Nanoseconds most{0};
    for (size_t i = 0; i < found.size(); ++i) {
      const size_t end = i + 1 < found.size() ? found[i + 1] : times.size();
      most =
          std::max(most, std::accumulate(times.begin() + static_cast<std::ptrdiff_t>(found[i]),
                                         times.begin() + static_cast<std::ptrdiff_t>(end), Nanoseconds(0)));
    }
    return most;
  };
  Nanoseconds low = *std::max_element(times.begin(), times.end());
  Nanoseconds high = std::accumulate(times.begin(), times.end(), Nanoseconds(0));
  while (low < high) {
    const Nanoseconds middle = low + (high - low) / 2;
    if (largest(begins(middle)) <= middle) {
      high = middle;
    } else {
      low = middle + Nanoseconds(1);
    }
  }
  return begins(high);
}

// Every node behind the output that says nothing of its device.
void place_behind(GraphNode& node, const std::string& device, std::unordered_set<const GraphNode*>& placed) {
  std::vector<GraphNode*> left = {&node};
  while (!left.empty()) {
    GraphNode* each = left.back();
    left.pop_back();
    if (!placed.insert(each).second) continue;
    each->device = device;
    each->each_input([&left](const Output& input) { left.push_back(input.get()); });
  }
}

}  // namespace

std::vector<Stage> place_in_stages(const Output& loss, const std::vector<std::string>& devices,
                                   const std::vector<std::pair<Output, at::Tensor>>& batch) {
  if (!loss.defined()) throw InvalidArgument("place_in_stages: the loss is undefined");
  if (devices.empty()) throw InvalidArgument("place_in_stages: there are no devices");
  for (const auto& device : devices) static_cast<void>(detail::TaskName::parse(device));
  detail::GraphData& graph = *loss.get()->graph;

  detail::Signature signature{.fetches = {loss}};
  std::set<const GraphNode*> depends;  // on the batch
  const at::AutoGradMode recorded(true);
  NodeTimer timer;
  for (const auto& [output, value] : batch) {
    signature.feeds.push_back(output);
    timer.give(output, value);
    depends.insert(output.get());
  }
  detail::check_signature(signature, graph);
  const auto nodes = detail::needed_nodes(signature);
  {
    const at::AutoGradMode not_recorded(false);
    timer.initialize(graph.initializers);
  }
  std::vector<GraphNode*> cut_nodes;
  std::vector<PassTimes> node_times;
  for (auto* node : nodes) {
    const PassTimes time = timer.measure(*node);
    bool is_cut = false;
    node->each_input([&](const Output& input) { is_cut = is_cut || depends.contains(input.get()); });
    if (!is_cut) continue;
    depends.insert(node);
    cut_nodes.push_back(node);
    node_times.push_back(time);
  }
  if (cut_nodes.size() < devices.size())
    raise<InvalidArgument>("place_in_stages: {} nodes can't be cut into {} stages", cut_nodes.size(),
                           devices.size());

  std::vector<Nanoseconds> times;
  for (const auto& time : node_times) times.push_back(time.both());
  const auto begins = cut(times, devices.size());
  std::vector<Stage> stages;
  std::unordered_set<const GraphNode*> placed;
  for (size_t i = 0; i < devices.size(); ++i) {
    const size_t end = i + 1 < begins.size() ? begins[i + 1] : cut_nodes.size();
    Stage stage{.device = devices[i], .first = cut_nodes[begins[i]]->name, .last = cut_nodes[end - 1]->name};
    for (size_t k = begins[i]; k < end; ++k) {
      place_behind(*cut_nodes[k], devices[i], placed);
      stage.forward += node_times[k].forward;
      stage.backward += node_times[k].backward;
    }
    stages.push_back(std::move(stage));
  }
  ++graph.placements;
  // What gives a variable its first value is where the variable is.
  for (auto* node : graph.initializers) {
    const GraphNode& variable = *node->arguments[0].outputs().front().get();
    if (placed.contains(&variable)) place_behind(*node, variable.device, placed);
  }
  return stages;
}

}  // namespace muster
