#pragma once

// What a session runs: a part of a graph, for given feeds and fetches, as a list of instructions over
// numbered slots. Compiling prunes to what is asked for, works out what depends on constants alone, computes
// what is written twice once, and joins the derivatives of neighbours into one pass of autograd.
//
// A Program does not need its graph any more. It is immutable and thread-safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "muster/graph.h"
#include "muster/graph/graph_node.h"
#include "muster/graph/operator.h"
#include "muster/graph/signature.h"
#include "muster/optim/update_rule.h"
#include "muster/runtime/variables.h"

namespace muster::detail {

/// What may be left out of compiling, to compare results.
struct CompileOptions {
  bool fold_constants = true;
  bool share_subexpressions = true;
  bool join_gradients = true;
  bool is_body = false;  ///< of a branch or a loop: autograd records what it records of the node around it
  uint64_t session = 0;  ///< whose program it is, by its number on this task; 0: of one in this process
};

/// Where an argument comes from.
struct Source {
  enum class Kind : uint8_t { kConstant, kSlot, kLastUse, kList };
  Kind kind = Kind::kConstant;
  uint32_t index = 0;  ///< of a constant, a slot, or a list
};

/// A list of sources, as an argument of an operator.
struct SourceList {
  c10::TypePtr element;
  std::vector<Source> sources;
};

enum class InstructionKind : uint8_t {
  kCall,      ///< an operator of libtorch's
  kRead,      ///< the value of a variable
  kAssign,    ///< source 0 becomes the value of a variable, and the result
  kAdd,       ///< source 0 is added to a variable; the result is the sum
  kHasValue,  ///< whether a variable has a value
  kUpdate,    ///< source 0 is the gradient of a variable, source 1 the rate or None
  kLeaf,      ///< source 0 without its history: where a tape begins
  kGradient,  ///< autograd over a tape
  kSum,       ///< the sum of the sources that are defined
  kSend,      ///< source 0 goes to another task
  kFunction,  ///< what a node does that is no operator of libtorch's
};

class StepExchange;

/// What a node does that is no operator of libtorch's, for one step: takes the outputs that are its arguments
/// from the stack, and leaves its results there. Thread-safe; may block.
using StepFunction = std::function<void(torch::jit::Stack& stack, StepExchange* others)>;

struct Instruction {
  InstructionKind kind = InstructionKind::kCall;
  bool on_tape = false;     ///< autograd records it
  bool gives_list = false;  ///< its one result is a list, of which each element has a slot
  uint16_t sources = 0;
  uint32_t first_source = 0;  ///< in Program::sources
  uint32_t result = 0;        ///< the slot of its first result
  uint32_t results = 0;
  uint32_t released = 0;        ///< how many slots nobody needs afterwards,
  uint32_t first_released = 0;  ///< in Program::released
  uint32_t detail =
      0;  ///< which operator, variable, update rule, gradient, send or function; of a leaf whether it has one
  uint32_t node = 0;  ///< which label, for messages
};

/// One pass of autograd: the gradients of `roots` are given, those of `wanted` come out.
struct GradientPass {
  std::vector<uint32_t> roots;        ///< slots of outputs on the tape
  std::vector<Source> gradients;      ///< one for each
  std::vector<uint32_t> wanted;       ///< slots of leaves, and of outputs on the tape
  std::vector<bool> must_be_defined;  ///< of the results: somebody takes them who knows no missing gradients
  bool is_last = true;                ///< nobody needs the tape afterwards
};

struct VariableUpdate {
  uint32_t variable = 0;
  UpdateRulePtr rule;
};

/// A value for another task.
struct Sent {
  uint32_t key = 0;
  uint32_t task = 0;
};

/// A value from another task.
struct Received {
  uint32_t key = 0;
  uint32_t task = 0;
  uint32_t slot = 0;
  std::vector<uint32_t> blocks;  ///< that wait for it
};

/// Of blocks that can run, those of the first kind do, and of one kind the first. What other tasks wait for
/// comes of forward passes; how far these may be ahead, control dependencies say.
enum class BlockUrgency : uint8_t { kForward, kBackward, kFiller };

/// Instructions that run one after the other, when all that they need from elsewhere is there. A program
/// that takes nothing from other tasks is one block.
struct Block {
  uint32_t first = 0;
  uint32_t count = 0;
  BlockUrgency urgency = BlockUrgency::kForward;
  uint32_t missing = 0;             ///< how many values and other blocks it waits for
  std::vector<uint32_t> followers;  ///< blocks that wait for it
  std::vector<uint32_t> uses;       ///< slots that other blocks use too
};

/// What messages say of an instruction.
struct NodeLabel {
  std::string name;
  std::string op;
  SourceLine where;

  std::string to_string() const;  ///< "node 'encoder/relu' (aten::relu, made at model.cc:17)"
};

class Program {
 public:
  /// Throws InvalidArgument as needed_nodes() does (graph/signature.h), and for a graph with a cycle.
  Program(const Signature& signature, Container& container, const CompileOptions& options = {});

  struct Feed {
    std::string name;
    uint32_t slot = 0;
    bool is_used = false;
    std::optional<at::ScalarType> dtype;
    Shape shape;

    void check(const at::Tensor& given) const;
  };

  /// Throws InvalidArgument for another number of tensors than there are feeds, for one of another type or
  /// shape, and for batches of different sizes.
  static void check(const std::vector<Feed>& feeds, const std::vector<at::Tensor>& given);

  std::vector<Instruction> instructions;
  std::vector<Source> sources;
  std::vector<SourceList> lists;
  std::vector<uint32_t> released;
  std::vector<c10::IValue> constants;
  std::vector<OperatorPtr> operators;
  std::vector<TaskVariable*> variables;  ///< of the container, which outlives this
  std::vector<VariableUpdate> updates;
  std::vector<StepFunction> functions;
  std::vector<GradientPass> gradients;
  std::vector<NodeLabel> nodes;
  std::vector<Feed> feeds;
  std::vector<Source> fetches;
  std::vector<Sent> sent;
  std::vector<Received> received;
  std::vector<Block> blocks;  ///< in an order in which they can run
  std::vector<uint32_t>
      shared_uses;  ///< of each slot, by how many blocks it is used, where that is more than one
  uint32_t slots = 0;
  bool is_body = false;
};

}  // namespace muster::detail
