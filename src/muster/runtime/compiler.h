#pragma once

// How a part of a graph becomes a Program. For program.cc only. Derivatives, simplifying and blocks have
// sources of their own.
//
// Derivatives. A node of the graph that has a needed node muster::gradient is on a tape: autograd records it.
// Nodes on tapes are put into regions; inside a region results are passed on with their history, and what
// comes from outside is a leaf. The gradient nodes of a region's nodes, of one call of gradients(), become
// one pass of autograd: the gradients that come from outside are its roots, those that somebody outside wants
// are its results. What nodes of the region say to each other is autograd's own business. A region's nodes
// have one depth (graph/partitioner.h), so that nothing leaves it for another task and comes back; where
// there are other tasks, they hang together, so that one region need not wait for what another one needs.
//
// Blocks. What needs the same values of other tasks, directly or by what it takes, is one block. What is told
// to wait for a derivative begins a block of its own.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "muster/graph/graph_node.h"
#include "muster/runtime/program.h"

namespace muster::detail {

class Compiler {
 public:
  Compiler(Program& program, const Signature& signature, Container& container, const CompileOptions& options)
      : program_(program), signature_(signature), container_(container), options_(options) {}

  void compile();

 private:
  using Key = std::pair<int64_t, int>;  // an output: node and index

  // The gradient nodes of one region and one call.
  struct Pass {
    std::vector<const GraphNode*> nodes;
    int64_t region = 0;
    std::vector<std::pair<Output, Output>> roots;  // an output on the tape, and a gradient of it
    std::map<Key, uint32_t> wanted;                // results: of which output, and their number
    uint32_t first_slot = 0;
  };

  // What an argument stands for: an output of a node, or a result of a pass.
  struct Value {
    const GraphNode* node = nullptr;
    Pass* pass = nullptr;
    int index = 0;
  };

  // What is put into order: a node, or a pass.
  struct Unit {
    size_t number = 0;
    const GraphNode* node = nullptr;
    Pass* pass = nullptr;
    int64_t priority = 0;
    std::vector<size_t> followers;
    int missing = 0;
    uint32_t block = 0;

    int64_t filler() const { return node != nullptr ? node->filler : pass->nodes.front()->filler; }
    bool is_receive() const { return node != nullptr && node->op->kind() == OperatorKind::kReceive; }
  };

  void collect();
  void find_regions();
  void form_passes();
  void simplify();
  void find_roots();
  void want_results();
  std::vector<Unit> order();
  void form_blocks(std::vector<Unit>& units);
  bool waits_for_pass(const GraphNode& node) const;
  void connect_blocks(const std::vector<Unit>& units);
  void emit(const std::vector<Unit>& units);
  void emit_node(const GraphNode& node);
  void emit_call(InstructionKind kind, const GraphNode& node, bool takes_values, size_t detail);
  void emit_pass(Pass& pass);
  void find_values_that_must_be_defined();
  void count_shared_uses();
  void release();
  template <typename Use>
  void each_slot(const Instruction& instruction, const Use& use) const;

  bool is_fed(const Output& output) const { return feed_slots_.contains(key_of(output)); }
  // Whether a value has a history.
  bool is_on_tape(const Output& output) const {
    return regions_.contains(output.get()->id) && !is_fed(output) &&
           info_of(output).type->kind() == c10::TypeKind::TensorType;
  }
  static Key key_of(const Output& output) { return {output.get()->id, output.index()}; }
  static std::vector<Output> inputs_of(const GraphNode& node);
  static const GraphNode& forward_of(const GraphNode& gradient);

  Pass* pass_of(const Output& gradient);
  bool is_inside(const Pass& pass, const Output& output) const;
  Pass* summing_pass(const GraphNode& sum);
  Value resolve(Output output, bool is_wanted);
  std::vector<Output> parts_of(const GraphNode& sum);

  std::optional<std::vector<c10::IValue>> folded(const GraphNode& node) const;
  std::optional<std::string> expression(const GraphNode& node) const;
  bool is_constant(const Output& output) const;

  Source source_of(const Output& output);
  Source source_of(const Argument& argument, const c10::Argument& formal, const GraphNode& node);
  Source constant(c10::IValue value);
  Source leaf_of(const Output& output, int64_t region);
  uint32_t slot_of(const Value& value);
  Instruction& emit(InstructionKind kind, const GraphNode& node, const std::vector<Source>& sources,
                    uint32_t results);
  uint32_t variable_index(const GraphNode& variable);
  static uint32_t number_of(const GraphNode& node, size_t argument);
  Source source_of_fetch(const Output& output);
  void detach_fetches(const GraphNode& node);

  Program& program_;
  const Signature& signature_;
  Container& container_;
  const CompileOptions options_;

  std::vector<const GraphNode*> nodes_;                 // what is needed, in the order of their numbers
  bool has_peers_ = false;                              // other tasks run other parts
  std::unordered_map<int64_t, int64_t> regions_;        // of nodes on tapes
  std::map<std::pair<int64_t, int64_t>, Pass> passes_;  // by call and region
  std::unordered_map<int64_t, Pass*> pass_of_node_;
  std::unordered_map<int64_t, std::vector<const Pass*>> passes_of_region_;
  std::set<std::pair<const Pass*, int64_t>> goes_on_with_;  // passes, and sums of gradients that they take
  std::unordered_map<int64_t, std::vector<c10::IValue>> constants_;  // results of nodes that were folded
  std::unordered_map<int64_t, const GraphNode*> same_;  // nodes that compute what an earlier one does
  std::map<Key, uint32_t> feed_slots_;
  std::set<Key> fetched_;
  std::unordered_map<int64_t, uint32_t> slots_;  // of each node's first output
  std::map<std::pair<Key, int64_t>, uint32_t> leaves_;
  std::map<Key, uint32_t> detached_;  // slots of fetches that are on a tape
  std::unordered_map<const GraphNode*, uint32_t> variables_;
  std::map<Key, uint32_t> constant_indices_;
};

template <typename Use>
void Compiler::each_slot(const Instruction& instruction, const Use& use) const {
  for (uint32_t i = 0; i < instruction.sources; ++i) {
    const Source& source = program_.sources[instruction.first_source + i];
    if (source.kind == Source::Kind::kSlot) use(source.index);
    if (source.kind != Source::Kind::kList) continue;
    for (const auto& each : program_.lists[source.index].sources) {
      if (each.kind == Source::Kind::kSlot) use(each.index);
    }
  }
  if (instruction.kind != InstructionKind::kGradient) return;
  for (const uint32_t slot : program_.gradients[instruction.detail].roots) use(slot);
  for (const uint32_t slot : program_.gradients[instruction.detail].wanted) use(slot);
}

}  // namespace muster::detail
