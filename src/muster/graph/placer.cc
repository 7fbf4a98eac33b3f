#include "muster/graph/placer.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "muster/base/error.h"

namespace muster::detail {

namespace {

// The only device that a task has.
TaskName full_name(const TaskName& task) {
  TaskName full = task;
  full.replica = 0;
  full.device_type = "cpu";
  full.device_index = 0;
  return full;
}

// The node that says where this one is, or says who says so; null: it does so itself.
const GraphNode* next_of(const GraphNode& node) {
  if (node.colocated != nullptr) return node.colocated;
  for (size_t i = 0; i < node.arguments.size(); ++i) {
    if (node.op->writes(i)) return node.arguments[i].outputs().front().get();
  }
  return node.beside;
}

// Whether it is where it is because somebody asked for it, and not because it belongs there.
bool is_placed_beside(const GraphNode& node) {
  return node.beside != nullptr && node.colocated == nullptr && next_of(node) == node.beside;
}

class Placer {
 public:
  explicit Placer(const PlacementOptions& options) : options_(options) {
    MUSTER_CHECK(options.default_task < options.tasks.size(), "there is no task to place nodes on");
    for (const auto& task : options.tasks) full_names_.push_back(full_name(task));
  }

  // Many nodes have the same few devices.
  int32_t place(const GraphNode& node) {
    const GraphNode& owner = placing_nodes_.of(node);
    const auto [found, is_new] = known_.emplace(owner.device, -1);
    if (is_new) found->second = choose(owner);
    const int32_t task = found->second;
    if (!node.device.empty() && is_placed_beside(node)) check_fits(node, owner, task);
    return task;
  }

 private:
  void check_fits(const GraphNode& node, const GraphNode& owner, int32_t task) const {
    const TaskName& found = full_names_[static_cast<size_t>(task)];
    if (options_.soft || TaskName::parse(node.device).matches(found)) return;
    raise<InvalidArgument>(
        "{} is placed on {}, and colocated with {}, which is placed on {}{}: change one of the devices, or "
        "leave the first one out",
        node.describe(), node.device, owner.describe(), owner.device.empty() ? "any task" : owner.device,
        owner.device == found.to_string() ? "" : fmt::format(", that is on {}", found.to_string()));
  }

  int32_t choose(const GraphNode& node) const {
    TaskName device = TaskName::parse(node.device);
    int32_t found = first_match(device);
    if (found >= 0) return found;
    if (!options_.soft) {
      std::vector<std::string> names;
      for (const auto& task : full_names_) names.push_back(task.to_string());
      constexpr size_t kShown = 8;
      const bool is_long = names.size() > kShown;
      if (is_long) names.resize(kShown);
      raise<InvalidArgument>("{} is placed on {}, which the cluster does not have; it has {}{}",
                             node.describe(), node.device, fmt::join(names, ", "), is_long ? ", ..." : "");
    }
    device.device_type.reset();
    device.device_index.reset();
    found = first_match(device);
    return found >= 0 ? found : static_cast<int32_t>(options_.default_task);
  }

  int32_t first_match(const TaskName& device) const {
    if (device.matches(full_names_[options_.default_task]))
      return static_cast<int32_t>(options_.default_task);
    for (size_t i = 0; i < full_names_.size(); ++i) {
      if (device.matches(full_names_[i])) return static_cast<int32_t>(i);
    }
    return -1;
  }

  const PlacementOptions& options_;
  std::vector<TaskName> full_names_;
  std::unordered_map<std::string, int32_t> known_;  // by device
  PlacingNodes placing_nodes_;
};

// A constant that is no tensor, as a text, which could not go from task to task.
bool goes_with_its_user(const GraphNode& node) {
  return node.op->kind() == OperatorKind::kConstant && node.device.empty() && node.colocated == nullptr &&
         node.beside == nullptr && node.arguments[0].is_value() && !node.arguments[0].value().isTensor();
}

}  // namespace

std::string GraphPlacement::device(const GraphNode& node) const {
  return full_name(tasks_[task(node)]).to_string();
}

// A node is made after those that it refers to: so it is in the messages that are read, too.
const GraphNode& PlacingNodes::of(const GraphNode& node) {
  std::vector<const GraphNode*> passed;
  const GraphNode* last = &node;
  while (const GraphNode* next = next_of(*last)) {
    MUSTER_CHECK(next->id < last->id, "{} is placed by a later node", last->describe());
    if (const auto found = found_.find(last); found != found_.end()) {
      last = found->second;
      break;
    }
    passed.push_back(last);
    last = next;
  }
  for (const auto* each : passed) found_.emplace(each, last);
  return *last;
}

GraphPlacement place(const std::vector<GraphNode*>& nodes, const PlacementOptions& options) {
  Placer placer(options);
  std::vector<int32_t> placed(nodes.empty() ? 0 : static_cast<size_t>(nodes.back()->id) + 1, -1);
  for (const auto* node : nodes) {
    const int32_t task = placed[static_cast<size_t>(node->id)] = placer.place(*node);
    node->each_input([&](const Output& input) {
      if (goes_with_its_user(*input.get())) placed[static_cast<size_t>(input.get()->id)] = task;
    });
  }
  return {options.tasks, std::move(placed)};
}

}  // namespace muster::detail

namespace muster {

DeviceFunction replica_device_setter(const ReplicaDeviceOptions& options) {
  if (options.ps_tasks < 1)
    detail::raise<InvalidArgument>(
        "replica_device_setter: there are {} parameter servers; expected 1 or more", options.ps_tasks);
  for (const auto& device : {options.ps_device, options.worker_device})
    static_cast<void>(detail::TaskName::parse(device));
  // The bytes, or the variables, that each task has. Shared by the copies of the function.
  auto loads = std::make_shared<std::vector<int64_t>>(static_cast<size_t>(options.ps_tasks), 0);
  return [options, loads](const Node& node) {
    if (node.get()->op->kind() != detail::OperatorKind::kVariable) return options.worker_device;
    const auto least = std::min_element(loads->begin(), loads->end());
    int64_t load = 1;
    if (options.by_bytes) {
      const auto& info = node.get()->outputs.front();
      load = info.dtype ? static_cast<int64_t>(c10::elementSize(*info.dtype)) : 1;
      for (const auto& size : info.shape.known() ? info.shape.sizes() : std::vector<Size>())
        load *= std::max<int64_t>(size.fixed, 1);
    }
    *least += load;
    return fmt::format("{}/task:{}", options.ps_device, least - loads->begin());
  };
}

}  // namespace muster
