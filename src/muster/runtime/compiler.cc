#include "muster/runtime/compiler.h"

#include <functional>
#include <limits>
#include <queue>
#include <set>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/optim/rule_text.h"
#include "muster/runtime/node_functions.h"
#include "muster/runtime/replica_functions.h"

namespace muster::detail {

void Compiler::compile() {
  collect();
  form_passes();
  simplify();
  find_roots();
  want_results();
  program_.is_body = options_.is_body;
  auto units = order();
  form_blocks(units);
  emit(units);
  connect_blocks(units);
  for (const auto& fetch : signature_.fetches) program_.fetches.push_back(source_of_fetch(fetch));
  find_values_that_must_be_defined();
  count_shared_uses();
  release();
}

// ---- What is needed.

std::vector<Output> Compiler::inputs_of(const GraphNode& node) {
  std::vector<Output> inputs;
  node.each_input([&inputs](const Output& output) { inputs.push_back(output); });
  return inputs;
}

void Compiler::collect() {
  for (const auto* node : needed_nodes(signature_)) {
    nodes_.push_back(node);
    if (node->op->kind() == OperatorKind::kReceive || node->op->kind() == OperatorKind::kSend)
      has_peers_ = true;
  }
  for (const auto& feed : signature_.feeds) {
    feed_slots_.emplace(key_of(feed), program_.slots);
    program_.feeds.push_back(
        {.name = feed.name(), .slot = program_.slots++, .dtype = feed.dtype(), .shape = feed.shape()});
  }
  const auto use = [this](const Output& output) {
    if (const auto feed = feed_slots_.find(key_of(output)); feed != feed_slots_.end())
      program_.feeds[feed->second].is_used = true;
  };
  for (const auto& fetch : signature_.fetches) {
    use(fetch);
    fetched_.insert(key_of(fetch));
  }
  for (const auto* node : nodes_) node->each_input(use);
}

// ---- The order.

std::vector<Compiler::Unit> Compiler::order() {
  std::vector<Unit> units;
  std::unordered_map<int64_t, size_t> of_node;
  std::unordered_map<const Pass*, size_t> of_pass;
  for (auto& [key, pass] : passes_) {
    of_pass[&pass] = units.size();
    units.push_back({.number = units.size(), .pass = &pass, .priority = pass.nodes.front()->id});
  }
  for (const auto* node : nodes_) {
    if (const auto pass = pass_of_node_.find(node->id); pass != pass_of_node_.end()) {
      of_node[node->id] = of_pass.at(pass->second);
      continue;
    }
    if (constants_.contains(node->id) || same_.contains(node->id)) continue;
    of_node[node->id] = units.size();
    // What others wait for goes as soon as it is there.
    const bool is_sent = node->op->kind() == OperatorKind::kSend;
    units.push_back({.number = units.size(), .node = node, .priority = is_sent ? -1 : node->id});
  }
  const auto before = [&](size_t first, size_t second) {
    if (first == second) return;
    units[first].followers.push_back(second);
    ++units[second].missing;
  };
  const auto needs = [&](size_t unit, const Output& output) {
    if (is_fed(output) || is_constant(output)) return;
    const Value value = resolve(output, /*is_wanted=*/false);
    before(value.pass != nullptr ? of_pass.at(value.pass) : of_node.at(value.node->id), unit);
  };
  const auto comes_after = [&](size_t unit, const GraphNode& node) {
    for (const auto* control : node.control) {
      const auto same = same_.find(control->id);
      const auto found = of_node.find(same == same_.end() ? control->id : same->second->id);
      if (found != of_node.end()) before(found->second, unit);
    }
  };
  for (size_t i = 0; i < units.size(); ++i) {
    if (units[i].node != nullptr) {
      const GraphNode& node = *units[i].node;
      comes_after(i, node);
      if (node.op->kind() == OperatorKind::kSumGradients) {
        if (summing_pass(node) != nullptr) continue;
        for (const auto& part : parts_of(node)) needs(i, part);
      } else {
        node.each_input([&](const Output& input) { needs(i, input); });
      }
    } else {
      for (const auto* node : units[i].pass->nodes) comes_after(i, *node);
      for (const auto& [output, gradient] : units[i].pass->roots) {
        needs(i, output);
        needs(i, gradient);
      }
    }
  }
  using Entry = std::pair<int64_t, size_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  for (size_t i = 0; i < units.size(); ++i) {
    if (units[i].missing == 0) ready.emplace(units[i].priority, i);
  }
  std::vector<Unit> ordered;
  while (!ready.empty()) {
    const size_t next = ready.top().second;
    ready.pop();
    for (const size_t follower : units[next].followers) {
      if (--units[follower].missing == 0) ready.emplace(units[follower].priority, follower);
    }
    ordered.push_back(units[next]);
  }
  if (ordered.size() != units.size()) {
    for (const auto& unit : units) {
      if (unit.missing > 0 && unit.node != nullptr)
        raise<InvalidArgument>("the graph has a cycle through {}", unit.node->describe());
    }
    raise<InvalidArgument>("the graph has a cycle through its derivatives");
  }
  return ordered;
}

// ---- Instructions.

Source Compiler::constant(c10::IValue value) {
  program_.constants.push_back(std::move(value));
  return {Source::Kind::kConstant, static_cast<uint32_t>(program_.constants.size() - 1)};
}

Source Compiler::source_of(const Output& output) {
  if (!output.defined()) return constant({});
  if (is_fed(output)) return {Source::Kind::kSlot, feed_slots_.at(key_of(output))};
  if (is_constant(output)) {
    const auto found = constant_indices_.find(key_of(output));
    if (found != constant_indices_.end()) return {Source::Kind::kConstant, found->second};
    const auto folded = constants_.find(output.get()->id);
    const Source source =
        constant(folded == constants_.end() ? output.get()->arguments[0].value()
                                            : folded->second[static_cast<size_t>(output.index())]);
    constant_indices_.emplace(key_of(output), source.index);
    return source;
  }
  return {Source::Kind::kSlot, slot_of(resolve(output, /*is_wanted=*/false))};
}

uint32_t Compiler::slot_of(const Value& value) {
  if (value.pass != nullptr) return value.pass->first_slot + static_cast<uint32_t>(value.index);
  return slots_.at(value.node->id) + static_cast<uint32_t>(value.index);
}

// A result that is on a tape is fetched without its history, so that the tape ends with its last pass, and
// the variables that it holds can change in place.
Source Compiler::source_of_fetch(const Output& output) {
  if (!is_fed(output) && detached_.contains(key_of(output)))
    return {Source::Kind::kSlot, detached_.at(key_of(output))};
  return source_of(output);
}

// The output without its history, for the nodes of a region. It needs a gradient if a pass wants one.
Source Compiler::leaf_of(const Output& output, int64_t region) {
  const auto key = std::pair(key_of(output), region);
  if (const auto found = leaves_.find(key); found != leaves_.end())
    return {Source::Kind::kSlot, found->second};
  const auto& passes = passes_of_region_.at(region);
  const bool is_wanted = std::any_of(passes.begin(), passes.end(),
                                     [&](const Pass* pass) { return pass->wanted.contains(key_of(output)); });
  const Source source = source_of(output);
  if (!is_wanted && !is_on_tape(output)) return source;
  Instruction& made = emit(InstructionKind::kLeaf, *output.get(), {source}, 1);
  made.on_tape = true;
  made.detail = is_wanted ? 1 : 0;
  leaves_.emplace(key, made.result);
  return {Source::Kind::kSlot, made.result};
}

Source Compiler::source_of(const Argument& argument, const c10::Argument& formal, const GraphNode& node) {
  const auto region = regions_.find(node.id);
  const auto source = [&](const Output& output) {
    if (region == regions_.end() || !output.defined()) return source_of(output);
    const auto from = regions_.find(output.get()->id);
    const bool is_same_region = from != regions_.end() && from->second == region->second && !is_fed(output);
    return is_same_region ? source_of(output) : leaf_of(output, region->second);
  };
  if (argument.is_value()) return constant(argument.value());
  if (!argument.is_list()) return source(argument.outputs().front());
  c10::TypePtr type = formal.type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  SourceList list{.element = type->expectRef<c10::ListType>().getElementType()};
  for (const auto& output : argument.outputs()) list.sources.push_back(source(output));
  program_.lists.push_back(std::move(list));
  return {Source::Kind::kList, static_cast<uint32_t>(program_.lists.size() - 1)};
}

Instruction& Compiler::emit(InstructionKind kind, const GraphNode& node, const std::vector<Source>& sources,
                            uint32_t results) {
  if (sources.size() > std::numeric_limits<uint16_t>::max())
    raise<InvalidArgument>("{} has {} arguments: too many", node.describe(), sources.size());
  Instruction made{.kind = kind,
                   .sources = static_cast<uint16_t>(sources.size()),
                   .first_source = static_cast<uint32_t>(program_.sources.size()),
                   .result = program_.slots,
                   .results = results,
                   .node = static_cast<uint32_t>(program_.nodes.size())};
  program_.sources.insert(program_.sources.end(), sources.begin(), sources.end());
  program_.slots += results;
  program_.nodes.push_back({.name = node.name, .op = node.op->name(), .where = node.where});
  return program_.instructions.emplace_back(made);
}

uint32_t Compiler::number_of(const GraphNode& node, size_t argument) {
  const int64_t number = node.arguments[argument].value().toInt();
  if (number < 0 || number > std::numeric_limits<int32_t>::max())
    raise<InvalidArgument>("{}: {} is no key and no task", node.describe(), number);
  return static_cast<uint32_t>(number);
}

uint32_t Compiler::variable_index(const GraphNode& variable) {
  const auto [found, is_new] =
      variables_.emplace(&variable, static_cast<uint32_t>(program_.variables.size()));
  if (is_new) program_.variables.push_back(&container_.get(variable));
  return found->second;
}

void Compiler::emit(const std::vector<Unit>& units) {
  for (const auto& unit : units) {
    Block& block = program_.blocks[unit.block];
    if (block.count == 0) block.first = static_cast<uint32_t>(program_.instructions.size());
    if (unit.pass != nullptr) {
      emit_pass(*unit.pass);
    } else {
      emit_node(*unit.node);
    }
    block.count = static_cast<uint32_t>(program_.instructions.size()) - block.first;
  }
  // The last pass over a tape lets it go.
  std::set<int64_t> seen;
  size_t number = program_.gradients.size();
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    if (unit->pass == nullptr || unit->pass->wanted.empty()) continue;
    program_.gradients[--number].is_last = seen.insert(unit->pass->region).second;
  }
  if (program_.blocks.size() == 1) return;
  // Nobody knows which pass will be the last: a tape ends with the slots that hold it.
  std::map<int64_t, int> passes;
  for (const auto& unit : units) {
    if (unit.pass != nullptr) ++passes[unit.pass->region];
  }
  number = 0;
  for (const auto& unit : units) {
    if (unit.pass == nullptr || unit.pass->wanted.empty()) continue;
    program_.gradients[number++].is_last = passes.at(unit.pass->region) == 1;
  }
}

void Compiler::emit_node(const GraphNode& node) {
  switch (node.op->kind()) {
    case OperatorKind::kLibtorch:
      emit_call(InstructionKind::kCall, node, /*takes_values=*/true, program_.operators.size());
      program_.operators.push_back(node.op);
      break;
    case OperatorKind::kVariable: {
      Instruction& made = emit(InstructionKind::kRead, node, {}, 1);
      made.detail = variable_index(node);
      slots_[node.id] = made.result;
      break;
    }
    case OperatorKind::kRead: {
      Instruction& made = emit(InstructionKind::kRead, node, {}, 1);
      made.detail = variable_index(*node.arguments[0].outputs().front().get());
      slots_[node.id] = made.result;
      break;
    }
    case OperatorKind::kIsInitialized: {
      Instruction& made = emit(InstructionKind::kHasValue, node, {}, 1);
      made.detail = variable_index(*node.arguments[0].outputs().front().get());
      slots_[node.id] = made.result;
      break;
    }
    case OperatorKind::kAssignAdd:
    case OperatorKind::kAssign: {
      const Source value = source_of(node.arguments[1].outputs().front());
      const bool adds = node.op->kind() == OperatorKind::kAssignAdd;
      Instruction& made = emit(adds ? InstructionKind::kAdd : InstructionKind::kAssign, node, {value}, 1);
      made.detail = variable_index(*node.arguments[0].outputs().front().get());
      slots_[node.id] = made.result;
      break;
    }
    case OperatorKind::kUpdate: {
      const Argument& lr = node.arguments[3];
      const std::vector<Source> sources = {source_of(node.arguments[1].outputs().front()),
                                           lr.is_value() ? constant({}) : source_of(lr.outputs().front())};
      const uint32_t variable = variable_index(*node.arguments[0].outputs().front().get());
      Instruction& made = emit(InstructionKind::kUpdate, node, sources, 0);
      made.detail = static_cast<uint32_t>(program_.updates.size());
      program_.updates.push_back({variable, parse_rule(node.arguments[2].value().toStringRef())});
      break;
    }
    case OperatorKind::kSumGradients: {
      if (summing_pass(node) != nullptr) break;
      const auto parts = parts_of(node);
      if (parts.size() == 1) break;
      std::vector<Source> sources;
      for (const auto& part : parts) sources.push_back(source_of(part));
      slots_[node.id] = emit(InstructionKind::kSum, node, sources, 1).result;
      break;
    }
    case OperatorKind::kSend: {
      const Argument& value = node.arguments[0];
      Instruction& made = emit(InstructionKind::kSend, node,
                               {value.is_value() ? constant({}) : source_of(value.outputs().front())}, 0);
      made.detail = static_cast<uint32_t>(program_.sent.size());
      program_.sent.push_back({.key = number_of(node, 1), .task = number_of(node, 2)});
      break;
    }
    case OperatorKind::kAccumulate:
    case OperatorKind::kPush:
    case OperatorKind::kCarryOut:
    case OperatorKind::kNextToken:
      emit_call(InstructionKind::kFunction, node, /*takes_values=*/false, program_.functions.size());
      program_.functions.push_back(replica_function(node, container_, options_.session));
      break;
    case OperatorKind::kPrint:
    case OperatorKind::kCond:
    case OperatorKind::kWhileLoop:
    case OperatorKind::kScript:
    case OperatorKind::kEnqueue:
    case OperatorKind::kDequeue:
    case OperatorKind::kQueueSize:
    case OperatorKind::kCloseQueue:
      emit_call(InstructionKind::kFunction, node, /*takes_values=*/false, program_.functions.size());
      program_.functions.push_back(node_function(node, container_, options_));
      break;
    case OperatorKind::kReceive:
      slots_[node.id] = program_.slots;
      program_.received.push_back(
          {.key = number_of(node, 0), .task = number_of(node, 1), .slot = program_.slots++});
      break;
    case OperatorKind::kPlaceholder:
    case OperatorKind::kConstant:
    case OperatorKind::kGradient:
    case OperatorKind::kGroup:
    case OperatorKind::kQueue:
      break;
  }
}

// A call takes its arguments from the stack; what is a value, a function of ours knows already.
void Compiler::emit_call(InstructionKind kind, const GraphNode& node, bool takes_values, size_t detail) {
  const auto& formals = node.op->schema().arguments();
  std::vector<Source> sources;
  for (size_t i = 0; i < formals.size(); ++i) {
    if (!takes_values && (node.arguments[i].is_value() || node.op->writes(i))) continue;
    sources.push_back(source_of(node.arguments[i], formals[i], node));
  }
  Instruction& made = emit(kind, node, sources, static_cast<uint32_t>(node.outputs.size()));
  made.on_tape = regions_.contains(node.id);
  made.gives_list = node.op->gives_list();
  made.detail = static_cast<uint32_t>(detail);
  slots_[node.id] = made.result;
  if (made.on_tape) detach_fetches(node);
}

void Compiler::detach_fetches(const GraphNode& node) {
  for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i) {
    const Output output(const_cast<GraphNode*>(&node), i);
    if (!fetched_.contains(key_of(output)) || !is_on_tape(output)) continue;
    Instruction& leaf = emit(InstructionKind::kLeaf, node, {source_of(output)}, 1);
    leaf.on_tape = true;
    detached_.emplace(key_of(output), leaf.result);
  }
}

void Compiler::emit_pass(Pass& pass) {
  if (pass.wanted.empty()) return;
  GradientPass made;
  for (const auto& [output, gradient] : pass.roots) {
    made.roots.push_back(slot_of({.node = output.get(), .index = output.index()}));
    made.gradients.push_back(source_of(gradient));
  }
  made.wanted.resize(pass.wanted.size());
  for (const auto& [key, number] : pass.wanted) {
    const auto leaf = leaves_.find({key, pass.region});
    made.wanted[number] =
        leaf != leaves_.end() ? leaf->second : slots_.at(key.first) + static_cast<uint32_t>(key.second);
  }
  Instruction& instruction = emit(InstructionKind::kGradient, *pass.nodes.front(), made.gradients,
                                  static_cast<uint32_t>(made.wanted.size()));
  instruction.detail = static_cast<uint32_t>(program_.gradients.size());
  pass.first_slot = instruction.result;
  program_.gradients.push_back(std::move(made));
}

// Sums, passes and updates take a missing gradient as what it is; operators and callers need zeros.
void Compiler::find_values_that_must_be_defined() {
  std::vector<bool> needed(program_.slots, false);
  const auto need = [&](const Source& source) {
    if (source.kind == Source::Kind::kSlot) needed[source.index] = true;
    if (source.kind != Source::Kind::kList) return;
    for (const auto& each : program_.lists[source.index].sources) {
      if (each.kind == Source::Kind::kSlot) needed[each.index] = true;
    }
  };
  for (const auto& fetch : program_.fetches) need(fetch);
  for (auto instruction = program_.instructions.rbegin(); instruction != program_.instructions.rend();
       ++instruction) {
    if (instruction->kind == InstructionKind::kGradient) {
      auto& pass = program_.gradients[instruction->detail];
      for (uint32_t i = 0; i < instruction->results; ++i)
        pass.must_be_defined.push_back(needed[instruction->result + i]);
      continue;
    }
    if (instruction->kind == InstructionKind::kUpdate) continue;
    if (instruction->kind == InstructionKind::kSum && !needed[instruction->result]) continue;
    for (uint32_t i = 0; i < instruction->sources; ++i) need(program_.sources[instruction->first_source + i]);
  }
}

// Slots are let go of by the last instruction that uses them; a call that uses one last takes it over.
void Compiler::release() {
  std::vector<char> is_needed(program_.slots, 0);
  for (const auto& fetch : program_.fetches) {
    if (fetch.kind == Source::Kind::kSlot) is_needed[fetch.index] = 1;
  }
  for (size_t slot = 0; slot < program_.shared_uses.size(); ++slot) {
    if (program_.shared_uses[slot] > 0) is_needed[slot] = 1;
  }
  const auto visit = [this](const Source& source, const auto& use) {
    if (source.kind == Source::Kind::kSlot) use(source.index);
    if (source.kind != Source::Kind::kList) return;
    for (const auto& each : program_.lists[source.index].sources) {
      if (each.kind == Source::Kind::kSlot) use(each.index);
    }
  };
  for (auto instruction = program_.instructions.rbegin(); instruction != program_.instructions.rend();
       ++instruction) {
    std::vector<uint32_t> ending;
    const auto use = [&](uint32_t slot) {
      if (!std::exchange(is_needed[slot], 1)) ending.push_back(slot);
    };
    for (uint32_t i = 0; i < instruction->results; ++i) use(instruction->result + i);  // nobody needs it
    each_slot(*instruction, use);
    if (instruction->kind == InstructionKind::kCall || instruction->kind == InstructionKind::kFunction ||
        instruction->kind == InstructionKind::kAssign) {
      // The last of the arguments that name the slot takes it, unless it is in a list too.
      std::set<uint32_t> listed;
      for (uint32_t i = 0; i < instruction->sources; ++i) {
        const Source& source = program_.sources[instruction->first_source + i];
        if (source.kind == Source::Kind::kList)
          visit(source, [&listed](uint32_t slot) { listed.insert(slot); });
      }
      for (uint32_t i = instruction->sources; i-- > 0;) {
        Source& source = program_.sources[instruction->first_source + i];
        if (source.kind != Source::Kind::kSlot || listed.contains(source.index)) continue;
        const auto found = std::find(ending.begin(), ending.end(), source.index);
        if (found == ending.end()) continue;
        source.kind = Source::Kind::kLastUse;
        ending.erase(found);
      }
    }
    instruction->first_released = static_cast<uint32_t>(program_.released.size());
    instruction->released = static_cast<uint32_t>(ending.size());
    program_.released.insert(program_.released.end(), ending.begin(), ending.end());
  }
}

}  // namespace muster::detail
