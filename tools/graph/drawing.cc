#include "graph/drawing.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

namespace muster::detail {

namespace {

bool is_derivative(const GraphNode& node) {
  const auto kind = node.op->kind();
  if (kind == OperatorKind::kGradient || kind == OperatorKind::kSumGradients) return true;
  return node.name.starts_with("gradients/") || node.name.find("/gradients/") != std::string::npos;
}

BoxKind kind_of(const GraphNode& node) {
  switch (node.op->kind()) {
    case OperatorKind::kVariable:
      return BoxKind::kVariable;
    case OperatorKind::kPlaceholder:
      return BoxKind::kPlaceholder;
    case OperatorKind::kConstant:
      return BoxKind::kConstant;
    default:
      return BoxKind::kOperator;
  }
}

bool takes_derivatives(const GraphNode& node) {
  if (node.op->kind() != OperatorKind::kGradient) return false;
  const auto& gradients = node.arguments[1].outputs();
  return std::any_of(gradients.begin(), gradients.end(), [](const Output& gradient) {
    if (!gradient.defined()) return false;
    const auto kind = gradient.get()->op->kind();
    return kind == OperatorKind::kGradient || kind == OperatorKind::kSumGradients;
  });
}

// Updates come after all else: in the frames of their variables they would stretch these over the drawing,
// and in one box with them they would lead back to where the drawing begins.
bool is_update(const GraphNode& node) {
  const auto kind = node.op->kind();
  return kind == OperatorKind::kUpdate || kind == OperatorKind::kAccumulate ||
         kind == OperatorKind::kCarryOut;
}

// "addmm", "float32 [N, 10]": the operator only where the name does not say it.
std::string detail_of(const GraphNode& node) {
  const std::string& full = node.op->name();
  std::string op =
      full.substr(full.starts_with("aten::") || full.starts_with("muster::") ? full.find("::") + 2 : 0);
  op.resize(std::min(op.find('.'), op.size()));
  const auto ends = scope_ends(node.name);
  const std::string last = ends.empty() ? node.name : node.name.substr(ends.back() + 1);
  std::string text = kind_of(node) != BoxKind::kOperator || last.starts_with(op) ? "" : op;
  if (!node.outputs.empty()) {
    text += fmt::format("{}{}", text.empty() ? "" : "\n", describe(node.outputs.front()));
    if (node.outputs.size() > 1) text += fmt::format(" and {} more", node.outputs.size() - 1);
  }
  return text;
}

// "relu_12" and "relu_7" are "relu_*".
std::string without_numbers(const std::string& name) {
  std::string text;
  for (const char c : name) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) {
      text += c;
    } else if (text.empty() || text.back() != '*') {
      text += '*';
    }
  }
  return text;
}

// How nodes come to share boxes.
struct Grouping {
  size_t depth = 0;
  bool folds_numbers = false;
};

// The name of the box of a node: its own, or that of the scope that is drawn as one box.
std::string box_name(const GraphNode& node, const Grouping& grouping) {
  const auto ends = scope_ends(node.name);
  const bool is_deeper = ends.size() > grouping.depth;
  if (is_deeper && is_update(node)) return "updates";
  const std::string name = is_deeper ? node.name.substr(0, ends[grouping.depth]) : node.name;
  return grouping.folds_numbers ? without_numbers(name) : name;
}

using BoxKey = std::tuple<std::string, bool, std::string>;  // name, of a scope and not of a node, place

BoxKey key_of(const PlacedNode& placed, const Grouping& grouping) {
  const bool is_scope = scope_ends(placed.node->name).size() > grouping.depth;
  return {box_name(*placed.node, grouping), is_scope, placed.place};
}

size_t count_boxes(const std::vector<PlacedNode>& nodes, const Grouping& grouping) {
  std::set<BoxKey> boxes;
  for (const auto& placed : nodes) boxes.insert(key_of(placed, grouping));
  return boxes.size();
}

Grouping choose_grouping(const std::vector<PlacedNode>& nodes, const DrawingOptions& options) {
  if (options.depth) return {.depth = *options.depth};
  size_t deepest = 0;
  for (const auto& placed : nodes) deepest = std::max(deepest, scope_ends(placed.node->name).size());
  Grouping grouping{.depth = deepest};
  while (grouping.depth > 0 && count_boxes(nodes, grouping) > options.readable_boxes) --grouping.depth;
  grouping.folds_numbers = count_boxes(nodes, grouping) > options.readable_boxes;
  return grouping;
}

class DrawingMaker {
 public:
  DrawingMaker(std::vector<PlacedNode> nodes, const DrawingOptions& options)
      : nodes_(std::move(nodes)), grouping_(choose_grouping(nodes_, options)) {
    drawing_.no_place = options.no_place;
    drawing_.nodes = nodes_.size();
    drawing_.depth = grouping_.depth;
    drawing_.is_folded = grouping_.folds_numbers;
  }

  Drawing make() {
    add_boxes();
    for (const auto& placed : nodes_) add_lines(*placed.node);
    for (auto& [key, line] : lines_) drawing_.lines.push_back(std::move(line));
    return std::move(drawing_);
  }

 private:
  void add_boxes() {
    std::map<BoxKey, size_t> known;
    std::map<std::string, size_t> places;
    for (const auto& placed : nodes_) places.emplace(placed.place, 0);
    for (auto& [name, number] : places) {
      if (name.empty()) continue;
      number = drawing_.places.size();
      drawing_.places.push_back(name);
    }
    if (const auto none = places.find(""); none != places.end()) {
      none->second = drawing_.places.size();
      drawing_.places.emplace_back();
    }
    for (const auto& placed : nodes_) {
      const BoxKey key = key_of(placed, grouping_);
      const auto [found, is_new] = known.emplace(key, drawing_.boxes.size());
      box_of_[placed.node] = found->second;
      if (is_new) {
        // It may stay the only one of its scope, and is drawn as itself then.
        drawing_.boxes.push_back({.kind = kind_of(*placed.node),
                                  .name = placed.node->name,
                                  .scope = is_update(*placed.node) ? 0 : scope_of(placed.node->name),
                                  .detail = detail_of(*placed.node),
                                  .place = places.at(placed.place)});
        continue;
      }
      DrawnBox& box = drawing_.boxes[found->second];
      ++box.nodes;
      box.kind = BoxKind::kSeveral;
      box.name = std::get<0>(key);
      box.scope = scope_of(box.name);
      box.detail = fmt::format("{} nodes", box.nodes);
      drawing_.is_collapsed = true;
    }
  }

  // No deeper than what is drawn of scopes.
  size_t scope_of(const std::string& name) const {
    const auto ends = scope_ends(name);
    const size_t levels = std::min(ends.size(), grouping_.depth);
    return levels == 0 ? 0 : ends[levels - 1];
  }

  DrawnLine* line(const GraphNode& from, const GraphNode& to, bool is_control) {
    const auto first = box_of_.find(&from);
    if (first == box_of_.end()) return nullptr;
    const size_t second = box_of_.at(&to);
    if (first->second == second) return nullptr;
    auto& made = lines_[{first->second, second, is_control}];
    made.from = first->second;
    made.to = second;
    made.is_control = is_control;
    made.crosses = drawing_.boxes[made.from].place != drawing_.boxes[made.to].place &&
                   !drawing_.places[drawing_.boxes[made.from].place].empty() &&
                   !drawing_.places[drawing_.boxes[made.to].place].empty();
    return &made;
  }

  // A derivative is drawn with the gradients that it takes, not with its node, which is where it is; only the
  // first one, which takes no derivative, hangs on its node. What changes a variable has the variable's name.
  void add_lines(const GraphNode& node) {
    size_t of_node = takes_derivatives(node) ? node.arguments[0].outputs().size() : 0;
    node.each_input([&](const Output& input) {
      if (of_node > 0) {
        --of_node;
        return;
      }
      DrawnLine* drawn = line(*input.get(), node, /*is_control=*/false);
      if (drawn == nullptr) return;
      if (carried_.emplace(input.get(), input.index(), drawn->to).second)
        drawn->bytes += ValueBytes::of(input.get()->outputs[static_cast<size_t>(input.index())]);
    });
    for (const auto* before : node.control) line(*before, node, /*is_control=*/true);
  }

  const std::vector<PlacedNode> nodes_;
  const Grouping grouping_;
  Drawing drawing_;
  std::unordered_map<const GraphNode*, size_t> box_of_;
  std::map<std::tuple<size_t, size_t, bool>, DrawnLine> lines_;
  std::set<std::tuple<const GraphNode*, int, size_t>> carried_;  // output, and the box that it goes to
};

}  // namespace

std::vector<size_t> scope_ends(const std::string& name) {
  std::vector<size_t> ends;
  for (size_t at = name.find_first_of("/."); at != std::string::npos; at = name.find_first_of("/.", at + 1)) {
    if (at > 0 && at + 1 < name.size()) ends.push_back(at);
  }
  return ends;
}

Drawing make_drawing(const std::vector<PlacedNode>& nodes, const DrawingOptions& options) {
  std::vector<PlacedNode> drawn;
  for (const auto& placed : nodes) {
    if (!options.without_gradients || !is_derivative(*placed.node)) drawn.push_back(placed);
  }
  return DrawingMaker(std::move(drawn), options).make();
}

}  // namespace muster::detail
