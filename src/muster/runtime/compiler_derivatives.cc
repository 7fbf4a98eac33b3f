// The part of the compiler that joins derivatives: regions, and passes of autograd over them (compiler.h).

#include <algorithm>
#include <set>
#include <utility>

#include "muster/base/error.h"
#include "muster/runtime/compiler.h"

namespace muster::detail {

const GraphNode& Compiler::forward_of(const GraphNode& gradient) {
  return *gradient.arguments[0].outputs().front().get();
}

// By depth; where there are other tasks, also by what hangs together.
void Compiler::find_regions() {
  for (const auto* node : nodes_) {
    if (node->op->kind() != OperatorKind::kGradient) continue;
    const GraphNode& forward = forward_of(*node);
    regions_[forward.id] = !options_.join_gradients || has_peers_ ? forward.id + 1 : -forward.depth;
  }
  if (!options_.join_gradients || !has_peers_) return;
  const auto root_of = [this](int64_t id) {
    int64_t root = id;
    while (regions_.at(root) != root + 1) root = regions_.at(root) - 1;
    while (id != root) id = std::exchange(regions_.at(id), root + 1) - 1;  // the way is short from now on
    return root;
  };
  for (const auto* node : nodes_) {
    if (!regions_.contains(node->id)) continue;
    node->each_input([&](const Output& input) {
      if (!regions_.contains(input.get()->id) || is_fed(input) || input.get()->depth != node->depth) return;
      const int64_t first = root_of(input.get()->id);
      const int64_t second = root_of(node->id);
      if (first != second) regions_[std::max(first, second)] = std::min(first, second) + 1;
    });
  }
  for (auto& [id, region] : regions_) region = root_of(id) + 1;
}

void Compiler::form_passes() {
  find_regions();
  for (const auto* node : nodes_) {
    if (node->op->kind() != OperatorKind::kGradient) continue;
    const int64_t region = regions_.at(forward_of(*node).id);
    const auto [found, is_new] = passes_.try_emplace({node->arguments[3].value().toInt(), region});
    Pass& pass = found->second;
    if (is_new) passes_of_region_[region].push_back(&pass);
    pass.region = region;
    pass.nodes.push_back(node);
    pass_of_node_[node->id] = &pass;
    for (const auto& gradient : node->arguments[1].outputs())
      goes_on_with_.emplace(&pass, gradient.get()->id);
  }
}

bool Compiler::is_inside(const Pass& pass, const Output& output) const {
  const auto found = regions_.find(output.get()->id);
  return found != regions_.end() && found->second == pass.region && !is_fed(output);
}

Compiler::Pass* Compiler::pass_of(const Output& gradient) {
  const auto found = pass_of_node_.find(gradient.get()->id);
  return found == pass_of_node_.end() || is_fed(gradient) ? nullptr : found->second;
}

// The pass that makes this sum while it goes on with it: autograd adds up those parts that come from it, and
// the others are where it begins. Null where there is none.
Compiler::Pass* Compiler::summing_pass(const GraphNode& sum) {
  for (const auto& part : sum.arguments[0].outputs()) {
    Pass* pass = pass_of(part);
    if (pass != nullptr && is_inside(*pass, differentiated(part)) && goes_on_with_.contains({pass, sum.id}))
      return pass;
  }
  return nullptr;
}

// What is left to add up: one value of each pass, which has added up its own.
std::vector<Output> Compiler::parts_of(const GraphNode& sum) {
  std::vector<Output> parts;
  std::set<const Pass*> seen;
  for (const auto& part : sum.arguments[0].outputs()) {
    const Pass* pass = pass_of(part);
    if (pass == nullptr || seen.insert(pass).second) parts.push_back(part);
  }
  return parts;
}

void Compiler::find_roots() {
  for (auto& [key, pass] : passes_) {
    for (const auto* node : pass.nodes) {
      const auto& outputs = node->arguments[0].outputs();
      const auto& gradients = node->arguments[1].outputs();
      for (size_t i = 0; i < outputs.size(); ++i) {
        const GraphNode& from = *gradients[i].get();
        if (pass_of(gradients[i]) == &pass) continue;
        const bool is_own_sum = from.op->kind() == OperatorKind::kSumGradients && !is_fed(gradients[i]) &&
                                summing_pass(from) == &pass;
        if (is_own_sum) {
          for (const auto& part : parts_of(from)) {
            if (pass_of(part) != &pass) pass.roots.emplace_back(outputs[i], part);
          }
        } else {
          pass.roots.emplace_back(outputs[i], gradients[i]);
        }
      }
    }
  }
}

// The value behind an output; of a gradient, that result of a pass, which is wanted from now on if so said.
Compiler::Value Compiler::resolve(Output output, bool is_wanted) {
  const auto result_of = [&](Pass* pass, const Output& of) -> Value {
    auto found = pass->wanted.find(key_of(of));
    if (found == pass->wanted.end()) {
      MUSTER_CHECK(is_wanted, "a gradient was not wanted");
      found = pass->wanted.emplace(key_of(of), static_cast<uint32_t>(pass->wanted.size())).first;
    }
    return {.pass = pass, .index = static_cast<int>(found->second)};
  };
  if (is_fed(output)) return {.node = output.get(), .index = output.index()};
  if (const auto same = same_.find(output.get()->id); same != same_.end())
    output = {const_cast<GraphNode*>(same->second), output.index()};
  const GraphNode& node = *output.get();
  if (Pass* pass = pass_of(output)) return result_of(pass, differentiated(output));
  if (node.op->kind() == OperatorKind::kSumGradients) {
    if (Pass* pass = summing_pass(node))
      return result_of(pass, differentiated(node.arguments[0].outputs().front()));
    const auto parts = parts_of(node);
    if (parts.size() == 1) return resolve(parts.front(), is_wanted);
  }
  return {.node = &node, .index = output.index()};
}

// Looks at every use of a gradient outside its pass.
void Compiler::want_results() {
  const auto want = [this](const Output& output) { static_cast<void>(resolve(output, /*is_wanted=*/true)); };
  for (const auto* node : nodes_) {
    const auto kind = node->op->kind();
    if (kind == OperatorKind::kGradient) continue;
    if (kind == OperatorKind::kSumGradients) {
      if (summing_pass(*node) == nullptr) {
        for (const auto& part : parts_of(*node)) want(part);
      }
      continue;
    }
    node->each_input(want);
  }
  for (const auto& fetch : signature_.fetches) want(fetch);
  for (auto& [key, pass] : passes_) {
    for (const auto& [output, gradient] : pass.roots) want(gradient);
  }
}

}  // namespace muster::detail
